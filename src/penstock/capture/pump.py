"""One connection at work: connection → session → fragments → log → tracker → feedback.

Invariant: a position is confirmed only after the log has it, and everything before it, on disk. The
loop never waits for anything else than the socket, the disk, and room in the log; while there is no
room it goes on to answer the server.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import structlog

from penstock.capture.acks import AckTracker
from penstock.capture.flushing import FlushPolicy
from penstock.capture.fragments import Abort, Description, Fragment, Fragmenter, Signal
from penstock.capture.heartbeat import PREFIX, HeartbeatMeter
from penstock.changelog.maintenance import RetentionSettings, prune
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.messages import LogicalMessage
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.session import ReplicationSession

# How often retention looks, and how often a full log looks again.
_PRUNE_INTERVAL_S = 30.0
_FULL_INTERVAL_S = 1.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Pump:
    connection: ReplicationConnection
    session: ReplicationSession
    log: LogWriter
    retention: RetentionSettings
    heartbeat: HeartbeatMeter
    stop: threading.Event
    _fragmenter: Fragmenter = field(init=False)
    _tracker: AckTracker = field(init=False)
    _flushing: FlushPolicy = field(default_factory=FlushPolicy)
    # Commits that the log has taken and not yet flushed.
    _committed: list[int] = field(default_factory=list)
    _prune_at: float = 0.0
    _full: bool = False

    def __post_init__(self) -> None:
        self._fragmenter = Fragmenter(self.log.complete_lsn)
        self._tracker = AckTracker(self.log.complete_lsn)

    def run(self) -> None:
        """Until `stop`, then leave cleanly; raises what ends the connection."""
        now = time.monotonic()
        while not self.stop.is_set():
            decision = self.session.decide(now)
            if decision.give_up is not None:
                raise decision.give_up
            if decision.send is not None:
                self.connection.send(decision.send)
            now = self._turn(now, decision.wake_at)
        self._flush(time.monotonic())
        self.connection.send(self.session.final_status(now))
        self.connection.end()

    def _turn(self, now: float, wake_at: float) -> float:
        """Receive and store what there is, or wait; returns the time."""
        self._keep_small(now)
        if self._full:
            # Nothing is read: the server's own buffers fill, and it waits for us.
            self.stop.wait(max(0.0, min(wake_at - now, _FULL_INTERVAL_S)))
            return time.monotonic()
        pending = self.log.pending_bytes
        if pending:
            timeout_s = 0.0
        else:
            timeout_s = min(wake_at, self._flushing.wake_at(unnoted=self._unnoted)) - now
        run = self.connection.read(timeout_s)
        now = time.monotonic()
        self.session.receive(run, now)
        self._store(run, now)
        if self._flushing.due(
            now,
            pending_bytes=self.log.pending_bytes,
            drained=not run,
            unnoted=self._unnoted,
            urgent=self.session.shutting_down,
        ):
            self._flush(now)
            now = time.monotonic()
        return now

    @property
    def _unnoted(self) -> bool:
        return self.session.received_lsn > self.log.complete_lsn

    def _store(self, run: list[memoryview], now: float) -> None:
        log = self.log
        for event in self._fragmenter.feed(run):
            match event:
                case Fragment():
                    if event.messages:
                        log.append(event)
                    if event.commit is not None:
                        log.commit(event.xid, event.commit)
                        self._committed.append(self._tracker.register(event.commit.lsn))
                case Description():
                    log.describe(event)
                case Abort():
                    log.abort(event)
                case Signal():
                    self._signal(event, now)

    def _signal(self, signal: Signal, now: float) -> None:
        """Logical messages outside transactions: ours are heartbeats, others are not kept."""
        message = Decoder(1, "off").decode(signal.payload)
        if isinstance(message, LogicalMessage) and message.prefix == PREFIX:
            self.session.heartbeat_received(now)
            self.heartbeat.received(message.content.decode(errors="replace"))

    def _flush(self, now: float) -> None:
        """Make everything received durable, and so confirmable."""
        self.log.flush(self.session.received_lsn)
        for ack_id in self._committed:
            self._tracker.mark_published_by_id(ack_id)
        self._committed.clear()
        self.session.made_durable(self._durable())
        self._flushing.flushed(now)
        self.heartbeat.durable(time.monotonic())

    def _durable(self) -> Lsn:
        """The log's position, never beyond an unpublished commit."""
        if self._tracker.pending_count:
            return self._tracker.frontier_lsn
        return self.log.complete_lsn

    def _keep_small(self, now: float) -> None:
        """Let retention look, now and then; a log beyond its budget at every turn."""
        if now < self._prune_at:
            return
        pruned = prune(self.log, self.retention)
        for name in pruned.invalidated:
            _log.error("consumer released: the log reached its disk budget", consumer=name)
        if pruned.full and not self._full:
            _log.error(
                "the log reached its disk budget and waits for its consumers",
                max_bytes=self.retention.max_bytes,
            )
        self._full = pruned.full
        self._prune_at = now + (_FULL_INTERVAL_S if pruned.full else self._prune_pause_s())

    def _prune_pause_s(self) -> float:
        # With a budget the log may grow past it between two looks: look often.
        return _PRUNE_INTERVAL_S if self.retention.max_bytes is None else _FULL_INTERVAL_S
