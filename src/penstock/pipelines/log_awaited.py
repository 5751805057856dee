"""An audit waits until the log has come as far as the source and the target have: for as long as
capture is at it, and not if nobody is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

import psycopg

from penstock.changelog.reader import LogReader
from penstock.config import SourceConfig
from penstock.errors import SourceError, VerifyTimeout
from penstock.lsn import Lsn
from penstock.pipelines.source_snapshot import SourceSnapshot
from penstock.postgres.cancelling import Cancelled
from penstock.postgres.connect import connect
from penstock.postgres.poll_lock import read_poller
from penstock.postgres.slots import read_slot

# Capture is milliseconds behind the server, if it runs and no large transaction is on its way.
_CATCH_UP_S = 30.0
# It may be connecting again: its longest pause, and a connection.
_RECONNECT_S = 12.0
# On an idle database the log may be some seconds behind: who waits longer is told for what, and
# told again from time to time.
_QUIET_S = 3.0
_TELL_EVERY_S = 60.0
_LOOK_EVERY_S = 0.02
# At the slot, which takes a connection: only while the log stands still.
_LOOK_AT_SLOT_S = 2.0

Waiting = Callable[[str], None]
_REMEDY = "Start it: penstock run, or penstock capture. If it runs, see what it says"


def require_capture(
    source: SourceConfig, taken: SourceSnapshot, log: LogReader, on_wait: Waiting
) -> None:
    """Before the source is read, which may take long: the log gets there only if somebody reads
    the slot.
    """
    telling = _Telling(on_wait)
    while not _is_read(taken.connection, source) and log.end().lsn < taken.lsn:
        if telling.waited_s > _RECONNECT_S:
            raise VerifyTimeout(
                f"the change log is complete up to {log.end().lsn} only, the source is at "
                f'{taken.lsn}, and nobody reads slot "{source.slot}": capture does not run',
                remedy=_REMEDY,
                lsn=taken.lsn,
            )
        telling.wait(f'capture to read slot "{source.slot}"')


def wait_for_log(
    source: SourceConfig, log: LogReader, lsn: Lsn, on_wait: Waiting, stop: Event | None = None
) -> None:
    """While the slot is read, however long: a large transaction that is on its way keeps the log's
    position where it is. `stop` ends it with `Cancelled`.
    """
    telling = _Telling(on_wait)
    seen, moved = log.end().lsn, time.monotonic()
    looked = moved
    while (end := log.end().lsn) < lsn:
        if stop is not None and stop.is_set():
            raise Cancelled
        now = time.monotonic()
        if end > seen:
            seen, moved = end, now
        elif now - max(moved, looked) > _LOOK_AT_SLOT_S:
            if _capture_is_at_it(source, lsn):
                moved = now
            looked = time.monotonic()
        if now - moved > _CATCH_UP_S:
            raise VerifyTimeout(
                f"the change log is complete up to {end} only, {lsn} is needed, and for "
                f'{_CATCH_UP_S:g} s nobody has read slot "{source.slot}" for this log',
                remedy=f"{_REMEDY}. If that is well, correct path in [log]: it writes to another",
                lsn=lsn,
            )
        telling.wait(f"capture, whose log has to reach {lsn} and is at {end}")


def _capture_is_at_it(source: SourceConfig, lsn: Lsn) -> bool:
    """Not if it has come there already: then it writes to another log."""
    try:
        with connect(source.conninfo) as connection:
            facts = read_slot(connection, source.slot)
            is_read = _is_read(connection, source)
    except (SourceError, psycopg.Error):
        return False  # nor can capture be
    if facts is None or not is_read:
        return False
    return facts.confirmed_lsn is None or facts.confirmed_lsn < lsn


def _is_read(connection: psycopg.Connection, source: SourceConfig) -> bool:
    """Whether somebody reads the slot: all the time, or in runs for which it holds a lock."""
    if source.mode == "poll":
        return read_poller(connection, source.slot) is not None
    facts = read_slot(connection, source.slot)
    return facts is not None and facts.active_pid is not None


class _Telling:
    """Says what is waited for, if it takes long."""

    def __init__(self, on_wait: Waiting) -> None:
        self._on_wait = on_wait
        self._begun = time.monotonic()
        self._next_s = _QUIET_S

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._begun

    def wait(self, what: str) -> None:
        """A moment."""
        if self.waited_s > self._next_s:
            self._on_wait(what)
            self._next_s = self.waited_s + _TELL_EVERY_S
        time.sleep(_LOOK_EVERY_S)
