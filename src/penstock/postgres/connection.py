"""The replication connection: the only place with a socket.

In: a DSN, a slot, a publication, the position to start from. Out: runs of CopyData messages, as
libpq framed them. What they mean and what to answer is decided in `session.py`.

One thread uses a connection; only `wake` may be called from others and from signal handlers.
"""

from __future__ import annotations

import time

import psycopg
from psycopg import pq

from penstock.closing import Closing
from penstock.errors import (
    ConnectionLost,
    PublicationMissing,
    ServerShutdown,
    SlotInUse,
    SlotMissing,
    SourceError,
)
from penstock.lsn import Lsn
from penstock.postgres.connect import connect
from penstock.postgres.decoding_errors import (
    NO_UTF8,
    OBJECT_IN_USE,
    UNDEFINED_OBJECT,
    in_use_by,
    is_publication_skipped,
    not_utf8,
)
from penstock.postgres.envelope import StatusUpdate
from penstock.postgres.libpq_session import (
    RECONNECTS,
    LibpqSession,
    lost_if_broken,
    primary,
    sqlstate,
)
from penstock.postgres.output_plugins import not_allowed
from penstock.postgres.pace import STEP_S, Pace
from penstock.postgres.receive_buffer import hold_little, waiting_bytes
from penstock.postgres.system_identity import (
    IN_RECOVERY,
    TRANSACTION_IDS,
    SystemIdentity,
    TransactionIds,
    require_primary,
)

# Long enough for a walsender to send a few more messages, too short to be seen as latency.
_COALESCE_S = 0.0002
# Where no more than this is there, the server has nothing left that waited for us to read.
_REST_BYTES = 2**14
# Most of what the kernel holds of a server on this machine.
_WIDE_BYTES = 2**17
# After so much a step is handed out, and goes on with the next read: it bounds our memory.
_STEP_BYTES = 2**20
# How long a clean end may take: the server may be in the middle of a large commit.
_GOODBYE_S = 2.0


# How values are written as text depends on settings that a server, a database or a role may have
# changed. What the log holds must not.
VALUE_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
}


class ReplicationConnection(Closing):
    """A walsender of our own. Open it, identify, start, then read and send until it ends."""

    def __init__(self, dsn: str, *, wal_sender_timeout_s: float = 20.0) -> None:
        # A walsender that is busy with one large commit answers twice per timeout: shorten it for
        # this session. Warnings must reach us: one of them is how PostgreSQL 18 says that it skips
        # changes for want of a publication.
        settings = {
            "wal_sender_timeout": f"{int(wal_sender_timeout_s * 1000)}ms",
            "client_min_messages": "warning",
            **VALUE_SETTINGS,
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        connection = connect(dsn, replication="database", options=options)
        connection.add_notice_handler(self._notice)
        self._session = LibpqSession(connection)
        self._pgconn = connection.pgconn
        self._publication = ""
        self._streaming = False
        self._ended = False
        self._skipping: PublicationMissing | None = None
        # Whether the last `read` took a step, and all that had come together for it.
        self.took_a_step = False
        self._is_amid_step = False
        self._is_narrow = True
        self._pace = Pace(time.monotonic())
        # With TLS each message is a record of its own, and they are read one by one.
        self._is_local = not self._pgconn.ssl_in_use and hold_little(self._pgconn.socket)

    @property
    def server_version(self) -> int:
        """Such as 180004 for 18.4."""
        return self._pgconn.server_version

    @property
    def protocol_version(self) -> int:
        """The newest pgoutput protocol that this server speaks: 14: 2, 15: 3, 16 and up: 4."""
        return max(1, min(4, self.server_version // 10_000 - 12))

    @property
    def server_pid(self) -> int:
        """The server's process that serves this connection."""
        return self._pgconn.backend_pid

    def identify(self) -> SystemIdentity:
        """Raises `SourceUnavailable` for a standby."""
        require_primary(*self._session.row(IN_RECOVERY, 1))
        system_id, timeline, wal_end, database = self._session.row("IDENTIFY_SYSTEM", 4)
        ids = TransactionIds.parse(*self._session.row(TRANSACTION_IDS, 3))
        return SystemIdentity(system_id, int(timeline), Lsn.parse(wal_end), database, ids)

    def timeline_history(self, timeline: int) -> str:
        """Which timelines the server was on before this one, and where it left each."""
        if timeline == 1:
            return ""
        _, content = self._session.row(f"TIMELINE_HISTORY {timeline}", 2)
        return content

    def start(self, slot: str, publication: str, start_lsn: Lsn, *, messages: bool = False) -> None:
        """Begin streaming; transactions that end at or below `start_lsn` may still come.

        `messages`: ask for logical messages too, which any role may emit, of any size.
        """
        self._publication = publication
        quoted = publication.replace('"', '""').replace("'", "''")
        options = (
            f"proto_version '{self.protocol_version}', publication_names '\"{quoted}\"', "
            f"streaming 'on', messages '{str(messages).lower()}'"
        )
        self._session.take_texts_as_they_are()
        result = self._session.ask(
            f'START_REPLICATION SLOT "{slot}" LOGICAL {start_lsn} ({options})'
        )
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._explain_start(result, slot)
        self._streaming = True

    def read(self, timeout_s: float) -> list[memoryview]:
        """The messages that are there, as one run; waits up to `timeout_s` for the first, behind a
        backlog for one step too.

        Empty after the time-out or a `wake`. Raises `ConnectionLost` when the stream has ended,
        and `PublicationMissing` when the server skips changes; nothing of that run is handed out.
        """
        self.took_a_step = False
        with lost_if_broken():
            run = self._drain()
            if not run:
                self._pgconn.flush()
                if self._is_local and self._pace.is_much:
                    run = self._step() or self._drain()
                    self.took_a_step = bool(run) and not self._is_amid_step
            if not run:
                # Before waiting: TLS may hold bytes that the socket no longer shows.
                self._pgconn.consume_input()
                run = self._drain()
                if not run and self._session.wait(timeout_s):
                    # A walsender sends message by message and would wake us for each one, at the
                    # cost of both: let some come together.
                    time.sleep(_COALESCE_S)
                    self._pgconn.consume_input()
                    run = self._drain()
        if self._skipping is not None:
            raise self._skipping
        if self._is_local:
            self._pace.received(sum(map(len, run)), time.monotonic())
        return run

    def pause(self, seconds: float) -> None:
        """Let messages come together, unread; a `wake` ends it."""
        self._session.pause(seconds)

    def send(self, update: StatusUpdate) -> None:
        """Queue an update; what the socket does not take now goes with the next `read`."""
        with lost_if_broken():
            self._pgconn.put_copy_data(update.encode(time.time()))
            self._pgconn.flush()

    def wake(self) -> None:
        """Make `read` return at once. Safe in other threads and in signal handlers."""
        self._session.wake()

    def end(self) -> None:
        """Leave cleanly, so that the server has read our last update and freed the slot."""
        if not self._streaming:
            return
        self._streaming = False
        deadline = time.monotonic() + _GOODBYE_S
        try:
            self._pgconn.put_copy_end()
            if not self._session.flush(deadline):
                return  # it does not even read what we say
            while (left := deadline - time.monotonic()) > 0:
                size, _ = self._pgconn.get_copy_data(1)
                if size == -1:
                    break
                if size == 0 and self._session.wait(left):
                    self._pgconn.consume_input()
            # Behind its last data the server frees the slot, and then says that all is done.
            while self._pgconn.is_busy() and (left := deadline - time.monotonic()) > 0:
                if self._session.wait(left):
                    self._pgconn.consume_input()
        except psycopg.OperationalError:
            pass  # it has gone already

    def close(self) -> None:
        """Drop the connection; without `end`, the server finds out by itself."""
        self._session.close()

    def _drain(self) -> list[memoryview]:
        """Everything that libpq has framed; raises where that is the end. No system calls."""
        run = self._framed()
        # libpq says once that the stream has ended: hand out what came before it first.
        if self._ended and not run:
            raise self._explain_end()
        return run

    def _framed(self) -> list[memoryview]:
        run: list[memoryview] = []
        append, get = run.append, self._pgconn.get_copy_data
        while not self._ended:
            size, data = get(1)
            if size <= 0:
                self._ended = size < 0
                break
            append(data)
        return run

    def _step(self) -> list[memoryview]:
        """Let much come together on the server's side, and take it."""
        if not self._is_amid_step:
            self.pause(STEP_S)
        run: list[memoryview] = []
        size = 0
        self._is_amid_step = True
        while self._is_amid_step and size < _STEP_BYTES:
            if waiting_bytes(self._pgconn.socket) <= _REST_BYTES:
                # What the server could not send before comes now.
                time.sleep(_COALESCE_S)
                self._is_amid_step = waiting_bytes(self._pgconn.socket) > _REST_BYTES
            else:
                taken = self._taken_at_once()
                if not taken:
                    break  # one large message: before all of it is here, others have their turn
                run += taken
                size += sum(map(len, taken))
        return run

    def _taken_at_once(self) -> list[memoryview]:
        """As much as the kernel holds for us. Taken bit by bit it would let the server send bit by
        bit; but libpq's buffer has 16 KiB, and doubles only if it is full when more is read.
        """
        self._pgconn.consume_input()
        # Not where nothing is left: the connection may have ended, which is told later.
        if self._is_narrow and waiting_bytes(self._pgconn.socket):
            self._pgconn.consume_input()
        run = self._framed()
        self._is_narrow = self._is_narrow and sum(map(len, run)) < _WIDE_BYTES
        return run

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if self._streaming and is_publication_skipped(notice, self._publication):
            self._skipping = PublicationMissing(self._publication, while_running=True)

    def _explain_start(self, result: pq.abc.PGresult | None, slot: str) -> SourceError:
        code, text = sqlstate(result), primary(result)
        if code == UNDEFINED_OBJECT:
            return SlotMissing(slot)
        if code == OBJECT_IN_USE:
            return SlotInUse(slot, in_use_by(text))
        if (refused := not_allowed(code, text)) is not None:
            return refused
        return ConnectionLost(f"replication could not start: {text}", remedy=RECONNECTS)

    def _explain_end(self) -> SourceError:
        """The stream has ended: by an error, or because the server is shutting down."""
        self._streaming = False
        result = self._session.next_result()
        if result is None:
            return ConnectionLost("the server closed the connection", remedy=RECONNECTS)
        if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
            # A walsender that shuts down says CommandComplete once all it sent is confirmed.
            return ServerShutdown("the server is shutting down", remedy=RECONNECTS)
        code, text = sqlstate(result), primary(result)
        if code == UNDEFINED_OBJECT:
            # PostgreSQL 14 to 17 stop here; the slot is known to exist, it is open.
            return PublicationMissing(self._publication, while_running=True)
        if code in NO_UTF8:
            return not_utf8()
        return ConnectionLost(f"the server ended replication: {text}", remedy=RECONNECTS)
