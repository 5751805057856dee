"""The polling connection: capture's way in where a replication connection is not to be had.

In: a slot, peeked at with SQL functions. Out: the messages that replication would send, and after
the last of a run a keepalive with the position up to which the run has read.

A *run* is peek, then durable, then advance (M4.3):

1. It asks where the flushed WAL ends (L), and where the slot is. Nothing new: that is all.
2. It peeks up to L, at most so many changes; a transaction comes whole, however large.
3. It asks again where the slot is. Between two statements nobody holds it: one that was moved
   beyond our position, or made again, has lost changes, and the log is refused.
4. Fewer changes than that many: every commit that ends at or below L was sent, because one that is
   not decoded yet commits beyond L. A keepalive says so.
5. When capture has all of it on disk (`send`), the slot is advanced, and the next run may begin.

Nothing is taken twice: a peek that begins before our position, because the server forgot an
advance, brings commits that the fragmenter drops.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

import psycopg
from psycopg import pq

from penstock.closing import Closing
from penstock.errors import (
    ChangeDropped,
    ConnectionLost,
    DocumentTooLarge,
    OutputPluginMissing,
    PeekTooLarge,
    PluginOptionUnknown,
    PublicationMissing,
    SlotAheadOfLog,
    SlotInUse,
    SlotInvalidated,
    SlotMissing,
    SourceError,
    TimelineUnknown,
)
from penstock.lsn import ZERO, Lsn
from penstock.postgres import decoding_errors
from penstock.postgres.connect import connect_unlimited, set_for_session
from penstock.postgres.connection import VALUE_SETTINGS
from penstock.postgres.envelope import PAYLOAD_POS, Keepalive, StatusUpdate
from penstock.postgres.failures import translated
from penstock.postgres.libpq_session import (
    RECONNECTS,
    LibpqSession,
    lost_if_broken,
    primary,
    sqlstate,
)
from penstock.postgres.output_plugins import not_allowed
from penstock.postgres.poll_lock import lock_slot
from penstock.postgres.polling import statements
from penstock.postgres.polling.plugins import PollPlugin
from penstock.postgres.slots import read_slot
from penstock.postgres.system_identity import (
    IN_RECOVERY,
    TRANSACTION_IDS,
    SystemIdentity,
    TransactionIds,
    require_primary,
)

_COMMIT = ord("C")
_COMMIT_END_POS = PAYLOAD_POS + 10
# Signature, flags and the length of an extension that there is not.
_COPY_HEADER_BYTES = 11 + 4 + 4
_COPY_TRAILER = b"\xff\xff"
# wal2json warns of a change that it leaves out: format 2 by schema and table, format 1 by table.
_NO_IDENTITY = (
    r'no tuple identifier for \w+ in table (".*")|table "(.*)" without primary key or replica'
)
# Warnings must reach us: one of them is how PostgreSQL 18 says that it skips changes.
_SETTINGS = {
    "client_min_messages": "warning",
    # The server notices a client that the network has lost, and frees its lock.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    **VALUE_SETTINGS,
}
# After so much a run of messages is handed out: it bounds our memory.
_ENOUGH_BYTES = 2**20
# How long a clean end may take.
_GOODBYE_S = 5.0
# A run decodes so much WAL at the most: one that is broken off has not worked for nothing.
_MOST_WAL_BYTES = 2**28
# What the server takes as a number of changes.
_MOST_CHANGES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PollSettings:
    # How long after the beginning of a run the next one begins, if this one came to the end.
    interval_s: float = 1.0
    # A run stops behind the transaction with this change.
    max_changes: int = 10_000


class _State(Enum):
    IDLE = auto()
    # Where are WAL and slot, before a peek and after it.
    LOOKING = auto()
    CHECKING = auto()
    # A peek was sent, and the server decodes.
    DECODING = auto()
    # Its rows come.
    COPYING = auto()
    ADVANCING = auto()


class PollingConnection(Closing):
    """Holds the slot's lock from the beginning on."""

    def __init__(
        self, dsn: str, slot: str, plugin: PollPlugin, settings: PollSettings, *, log: str = ""
    ) -> None:
        """`log`: the folder of the log that the slot feeds, for errors."""
        connection = connect_unlimited(dsn, application_name="penstock poll")
        self._session = LibpqSession(connection)
        try:
            with translated(f'take the lock of replication slot "{slot}"'):
                lock_slot(connection, dsn, slot)
                set_for_session(connection, _SETTINGS)
                # While it decodes, it looks by itself now and then whether we are still there. Not
                # every server's platform has it.
                with suppress(psycopg.Error):
                    connection.execute("SET client_connection_check_interval = '1s'")
        except BaseException:
            self._session.close()
            raise
        connection.add_notice_handler(self._notice)
        self._connection = connection
        self._pgconn = connection.pgconn
        self._slot = slot
        self._plugin = plugin
        self._settings = settings
        self._log = log
        self._publication = ""
        self._skipping: SourceError | None = None
        self._state = _State.IDLE
        self._next_run_at = 0.0
        # Where the run's WAL ends, and whether there is more behind it.
        self._wal_end = ZERO
        self._is_all = True
        # How many changes the run may bring, how many it brought, and where it began.
        self._most = settings.max_changes
        self._rows = 0
        self._is_first_row = True
        self._began_at = ZERO
        # What is received and what is durable; the slot is advanced to the latter.
        self._received = ZERO
        self._durable = ZERO
        self._advancing_to = ZERO
        self._advanced = ZERO
        self.took_a_step = False

    @property
    def server_pid(self) -> int:
        """The server's process that serves this connection."""
        return self._pgconn.backend_pid

    def identify(self) -> SystemIdentity:
        """Raise `SourceUnavailable` for a standby."""
        require_primary(*self._session.row(IN_RECOVERY, 1))
        system_id, wal_file, wal_end, database = self._session.row(statements.IDENTIFY, 4)
        ids = TransactionIds.parse(*self._session.row(TRANSACTION_IDS, 3))
        timeline = statements.timeline_of(wal_file)
        return SystemIdentity(system_id, timeline, Lsn.parse(wal_end), database, ids)

    def timeline_history(self, timeline: int) -> str:
        """Refuse: only a replication connection shows where a server left its timelines."""
        raise TimelineUnknown(timeline)

    def start(self, slot: str, publication: str, start_lsn: Lsn, *, messages: bool = False) -> None:
        """Begin with the slot's first change. `messages` were asked for with the plugin."""
        del slot, messages
        self._publication = publication
        self._received = self._durable = start_lsn
        self._session.take_texts_as_they_are()
        self._pgconn.nonblocking = 1

    def read(self, timeout_s: float) -> list[memoryview]:
        """The messages that are there; waits up to `timeout_s` for the first."""
        deadline = time.monotonic() + timeout_s
        with lost_if_broken():
            while not (messages := self._progress()):
                now = time.monotonic()
                left_s = deadline - now
                if left_s <= 0:
                    break
                if self._may_run:
                    left_s = min(left_s, self._next_run_at - now)
                if self._session.wait(left_s):
                    self._pgconn.consume_input()
                elif not (self._may_run and time.monotonic() >= self._next_run_at):
                    break  # the time is over, or somebody woke us
        if self._skipping is not None:
            raise self._skipping
        return messages

    def pause(self, seconds: float) -> None:
        """Return at once: the messages of a run have come together."""

    def send(self, update: StatusUpdate) -> None:
        """Note what is durable: the slot is advanced there before the next run."""
        self._durable = max(self._durable, update.durable_lsn)

    def wake(self) -> None:
        """Make `read` return at once. Safe in other threads and in signal handlers."""
        self._session.wake()

    def end(self) -> None:
        """Break off what runs, and advance the slot to what is durable."""
        deadline = time.monotonic() + _GOODBYE_S
        with suppress(psycopg.OperationalError, SourceError):  # it has gone already
            if self._state is not _State.IDLE:
                self._connection.cancel_safe(timeout=_GOODBYE_S)
                self._discard(deadline)
            if self._durable > self._advanced:
                self._session.send(statements.advance(self._slot, self._durable))
                self._discard(deadline)

    def close(self) -> None:
        """Drop the connection, and with it the lock."""
        self._session.close()

    @property
    def _may_run(self) -> bool:
        """Whether the last run is done: all of it is durable, and the slot is there."""
        return self._state is _State.IDLE and self._durable >= self._received

    def _progress(self) -> list[memoryview]:
        """Go on as far as possible without waiting; returns the messages that came."""
        match self._state:
            case _State.IDLE:
                return self._begin()
            case _State.LOOKING:
                return self._looked()
            case _State.CHECKING:
                return self._checked()
            case _State.DECODING:
                return self._copy_begun()
            case _State.COPYING:
                return self._copied()
            case _State.ADVANCING:
                return self._advance_done()

    def _begin(self) -> list[memoryview]:
        if self._durable > self._advanced:
            self._advancing_to = self._durable
            self._session.send(statements.advance(self._slot, self._advancing_to))
            self._state = _State.ADVANCING
        elif self._may_run and time.monotonic() >= self._next_run_at:
            self._next_run_at = time.monotonic() + self._settings.interval_s
            self._session.send(statements.look(self._slot))
            self._state = _State.LOOKING
        return []

    def _looked(self) -> list[memoryview]:
        if (wal_end := self._where_wal_ends()) is None:
            return []
        self._wal_end = min(wal_end, Lsn(self._received + _MOST_WAL_BYTES))
        self._is_all = self._wal_end == wal_end
        if self._wal_end <= self._received:
            self._state = _State.IDLE
            return [self._keepalive(self._wal_end)]  # nothing was written: the server is alive
        self._rows = 0
        self._is_first_row = True
        self._began_at = self._received
        self._session.send(self._plugin.peek(self._slot, self._wal_end, self._most))
        self._state = _State.DECODING
        return []

    def _where_wal_ends(self) -> Lsn | None:
        """Take the answer to `look`, None before it is there; raise if the slot is elsewhere."""
        if self._pgconn.is_busy():
            return None
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise self._explain(result)
        self._session.next_result()  # that was all
        if result.ntuples == 0:
            raise SlotMissing(self._slot)
        wal_end, confirmed = (result.get_value(0, column) or b"" for column in range(2))
        slot_lsn = Lsn.parse(confirmed.decode()) if confirmed else ZERO
        if slot_lsn > self._durable:
            raise SlotAheadOfLog(self._slot, slot_lsn, self._log, self._durable)
        return Lsn.parse(wal_end.decode())

    def _copy_begun(self) -> list[memoryview]:
        if self._pgconn.is_busy():
            return []
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            raise self._explain(result)
        self._state = _State.COPYING
        return self._copied()

    def _copied(self) -> list[memoryview]:
        """The rows that have arrived; behind the last of a run that read all, a keepalive."""
        rows: list[memoryview] = []
        size = 0
        while size < _ENOUGH_BYTES:
            length, row = self._pgconn.get_copy_data(1)
            if length == -1:
                return self._taken(rows) + self._finish()
            if length == 0:
                # What the kernel holds comes with the same call of `read`.
                self._pgconn.consume_input()
                length, row = self._pgconn.get_copy_data(1)
                if length <= 0:
                    break
            size += length
            rows.append(row)
        return self._taken(rows)

    def _taken(self, rows: list[memoryview]) -> list[memoryview]:
        if rows and self._is_first_row:
            self._is_first_row = False
            rows[0] = rows[0][_COPY_HEADER_BYTES:]
        changes = [row for row in rows if row and row != _COPY_TRAILER]
        self._rows += len(changes)
        messages = self._plugin.messages(changes)
        commits = (each for each in reversed(messages) if each[PAYLOAD_POS] == _COMMIT)
        if (last := next(commits, None)) is not None:
            self._received = Lsn(int.from_bytes(last[_COMMIT_END_POS : _COMMIT_END_POS + 8], "big"))
        return messages

    def _finish(self) -> list[memoryview]:
        """The rows are at their end: of the run, or by an error."""
        result = self._session.next_result()
        if result is None or result.status != pq.ExecStatus.COMMAND_OK:
            raise self._explain(result)
        self._session.next_result()  # that was all
        self._session.send(statements.look(self._slot))
        self._state = _State.CHECKING
        return []

    def _checked(self) -> list[memoryview]:
        """The end of a run: how far it has come, and when the next one begins."""
        if self._where_wal_ends() is None:
            return []
        self._state = _State.IDLE
        is_capped = self._rows >= self._most
        if is_capped or not self._is_all:
            self._next_run_at = 0.0  # there may be more, which need not wait
        if not is_capped:
            self._most = self._settings.max_changes
            return [self._keepalive(self._wal_end)]
        complete_lsn = max(self._received, self._plugin.complete_lsn)
        if complete_lsn == self._began_at:
            # So many rows, and no transaction of ours has ended: they would come again.
            self._most = min(2 * self._most, _MOST_CHANGES)
            return []
        self._most = self._settings.max_changes
        return [self._keepalive(complete_lsn)]

    def _keepalive(self, lsn: Lsn) -> memoryview:
        """Say that every commit that ends at or below it was sent."""
        self._received = max(self._received, lsn)
        return memoryview(Keepalive(lsn, reply_requested=False).encode())

    def _advance_done(self) -> list[memoryview]:
        if self._pgconn.is_busy():
            return []
        result = self._pgconn.get_result()
        # 55000: the slot is further on already. One that is lost is found by the next peek.
        is_harmless = sqlstate(result) == decoding_errors.NOT_IN_STATE
        if not is_harmless and (result is None or result.status != pq.ExecStatus.TUPLES_OK):
            raise self._explain(result)
        self._session.next_result()  # that was all
        # Not what is durable by now: more may be, since the statement was sent.
        self._advanced = self._advancing_to
        self._state = _State.IDLE
        return self._begin()

    def _discard(self, deadline: float) -> None:
        """Read to the end of what was sent before."""
        while (left_s := deadline - time.monotonic()) > 0:
            if self._pgconn.is_busy():
                if self._session.wait(left_s):
                    self._pgconn.consume_input()
                continue
            result = self._pgconn.get_result()
            if result is None:
                self._state = _State.IDLE
                return
            while result.status == pq.ExecStatus.COPY_OUT and time.monotonic() < deadline:
                length, _ = self._pgconn.get_copy_data(1)
                if length == -1:
                    break
                if length == 0 and self._session.wait(deadline - time.monotonic()):
                    self._pgconn.consume_input()

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if self._plugin.name == "wal2json":
            # Its own words, which are not translated; the table's name stands in quotes.
            if found := re.search(_NO_IDENTITY, notice.message_primary or ""):
                self._skipping = ChangeDropped(found[1] or found[2])
        elif decoding_errors.is_publication_skipped(notice, self._publication):
            self._skipping = PublicationMissing(self._publication, while_running=True)

    def _explain(self, result: pq.abc.PGresult | None) -> SourceError:
        """Return the named error of a statement that failed."""
        self._state = _State.IDLE
        self._session.next_result()  # that was all
        text = primary(result)
        match sqlstate(result):
            case decoding_errors.OBJECT_IN_USE:
                return SlotInUse(self._slot, decoding_errors.in_use_by(text))
            case decoding_errors.UNDEFINED_OBJECT | decoding_errors.NOT_IN_STATE as code:
                return self._explain_slot(code, text)
            case "42501" as code:
                refused = not_allowed(code, text, self._plugin.name)
                return refused or decoding_errors.may_not_replicate(
                    self._connection.info.user, text
                )
            case "58P01":
                return OutputPluginMissing(self._plugin.name)
            case "22023":
                return PluginOptionUnknown(self._plugin.name, text)
            case "54000":
                # wal2json's format 1 has one document for a transaction.
                return DocumentTooLarge(self._slot)
            case "XX000" if "alloc request size" in text:
                return DocumentTooLarge(self._slot)
            case "53400" | "53200" | "53100":
                return PeekTooLarge(self._slot, text)
            case code if code in decoding_errors.NO_UTF8:
                return decoding_errors.not_utf8()
        return ConnectionLost(f"the slot could not be read: {text}", remedy=RECONNECTS)

    def _explain_slot(self, code: str, text: str) -> SourceError:
        """Tell a slot that is gone or lost from a publication that is."""
        facts = read_slot(self._connection, self._slot)
        if facts is None:
            return SlotMissing(self._slot)
        if facts.invalidation:
            return SlotInvalidated(self._slot, facts.invalidation)
        if code == decoding_errors.UNDEFINED_OBJECT:
            # Also if it was made again: what changed without it cannot be decoded.
            return PublicationMissing(self._publication, while_running=True)
        return ConnectionLost(f"the slot could not be read: {text}", remedy=RECONNECTS)
