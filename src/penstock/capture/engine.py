"""Capture: connection → session → transactions → log → tracker → feedback.

A thin loop around pure parts. Invariant: a position is confirmed only after the log has it, and
everything before it, on disk. So a crash anywhere loses nothing: whatever was not confirmed comes
again, and a commit that the log has already (`commit_lsn ≤ durable_lsn`) is dropped.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import structlog

from penstock.capture.acks import AckTracker
from penstock.capture.policy import Patience
from penstock.capture.start import check_position, check_source
from penstock.capture.transactions import TransactionBuilder
from penstock.changelog.log import LogHeader, LogWriter
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.lsn import ZERO, Lsn
from penstock.postgres.connection import ReplicationConnection, SystemIdentity
from penstock.postgres.session import ReplicationSession, SessionSettings
from penstock.postgres.slots import SlotFacts

# A position that comes from keepalives alone is noted at most so often: it costs an fsync.
_NOTE_INTERVAL_S = 1.0

_log = structlog.get_logger(__name__)


class Capture:
    """Follows one slot into one log until `stop`, connecting again after what may pass."""

    def __init__(self, config: Config) -> None:
        self._source = config.source
        self._directory: Path = config.log.path
        self._settings = SessionSettings(
            wal_sender_timeout_s=config.source.wal_sender_timeout_s,
            keepalive_interval_s=config.source.keepalive_interval_s,
            stale_timeout_s=config.heartbeat.timeout_min * 60,
        )
        self._stop = threading.Event()
        self._connection: ReplicationConnection | None = None
        # For those who watch: the newest session, and how often we had to connect.
        self.session: ReplicationSession | None = None
        self.connections = 0

    def stop(self) -> None:
        """Ask for a clean end; safe in other threads and in signal handlers."""
        self._stop.set()
        if (connection := self._connection) is not None:
            connection.wake()

    def run(self) -> None:
        """Capture until `stop`; raises only what an operator must mend."""
        patience = Patience()
        while not self._stop.is_set():
            durable_before = self._durable_lsn
            try:
                self._follow()
            except PenstockError as error:
                if self._durable_lsn > durable_before:
                    patience.progressed()
                pause_s = patience.pause_s(error, time.monotonic())
                _log.warning("reconnecting", reason=error.problem, pause_s=round(pause_s, 2))
                self._stop.wait(pause_s)

    @property
    def _durable_lsn(self) -> Lsn:
        return self.session.durable_lsn if self.session else ZERO

    def _follow(self) -> None:
        """One connection, from start to end."""
        slot = check_source(self._source)
        with ReplicationConnection(
            self._source.conninfo, wal_sender_timeout_s=self._settings.wal_sender_timeout_s
        ) as connection:
            identity = connection.identify()
            log = LogWriter(self._directory, _new_header(identity, slot))
            try:
                check_position(log.header, log.durable_lsn, identity, slot)
                connection.start(self._source.slot, self._source.publication, log.durable_lsn)
                self.connections += 1
                _log.info("following", slot=self._source.slot, from_lsn=str(log.durable_lsn))
                self._connection = connection
                self._pump(connection, log)
            finally:
                self._connection = None
                log.close()

    def _pump(self, connection: ReplicationConnection, log: LogWriter) -> None:
        now = time.monotonic()
        session = self.session = ReplicationSession(log.durable_lsn, self._settings, now=now)
        builder = TransactionBuilder(connection.protocol_version)
        tracker = AckTracker(log.durable_lsn)
        noted_at = now
        while not self._stop.is_set():
            decision = session.decide(now)
            if decision.give_up is not None:
                raise decision.give_up
            if decision.send is not None:
                connection.send(decision.send)
            unnoted = session.received_lsn > log.durable_lsn
            wake_at = (
                min(decision.wake_at, noted_at + _NOTE_INTERVAL_S) if unnoted else decision.wake_at
            )
            run = connection.read(wake_at - now)
            now = time.monotonic()
            session.receive(run, now)
            events = []
            for message in run:
                for transaction in builder.add(message):
                    if transaction.commit_lsn > log.durable_lsn:
                        log.append(transaction)
                        events.append(tracker.register(transaction.commit_lsn))
            due = now - noted_at >= _NOTE_INTERVAL_S or session.shutting_down
            if events or (due and session.received_lsn > log.durable_lsn):
                log.flush(session.received_lsn)
                for event in events:
                    tracker.mark_published_by_id(event)
                session.made_durable(max(tracker.frontier_lsn, session.received_lsn))
                noted_at = now
        if session.received_lsn > log.durable_lsn:
            log.flush(session.received_lsn)
            session.made_durable(session.received_lsn)
        connection.send(session.final_status(now))
        connection.end()


def _new_header(identity: SystemIdentity, slot: SlotFacts) -> LogHeader:
    """For a log that does not exist yet: it begins where the slot does."""
    return LogHeader(slot.confirmed_lsn or Lsn(0), identity.timeline, identity.system_id)
