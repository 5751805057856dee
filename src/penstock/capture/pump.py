"""One connection at work: connection → session → fragments → log → tracker → feedback.

Invariant: a position is confirmed only after the log has it, and everything before it, on disk. The
loop never waits for anything else than the socket and the disk. When the log is at its budget the
connection ends cleanly: to keep it without reading would hold up a server that shuts down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from penstock.capture.acks import AckTracker
from penstock.capture.flushing import FlushPolicy
from penstock.capture.heartbeat import PREFIX, HeartbeatMeter
from penstock.capture.storing import store
from penstock.changelog.maintenance import Pruned, prune
from penstock.changelog.settings import RetentionSettings
from penstock.changelog.writer import LogWriter
from penstock.errors import LogAtBudget
from penstock.lasting_state import LastingState
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.session import ReplicationSession
from penstock.postgres.source_connection import SourceConnection
from penstock.words import duration

# How often retention looks. With a budget often: the log may grow past it between two looks.
_PRUNE_INTERVAL_S = 30.0
_BUDGET_INTERVAL_S = 1.0

_SILENT = (
    "The server was asked and did not answer: look whether its walsender is stopped (slot's "
    "active_pid) and whether the network drops packets; Penstock waits, and connects again later"
)

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Pump:
    connection: SourceConnection
    session: ReplicationSession
    log: LogWriter
    retention: RetentionSettings
    heartbeat: HeartbeatMeter
    stop: threading.Event
    # Called after each flush.
    on_durable: Callable[[], None] = lambda: None
    # Called after each look of retention.
    on_pruned: Callable[[Pruned, float], None] = lambda _pruned, _now: None
    # Called when something was received for the first time.
    on_first_message: Callable[[], None] = lambda: None
    # Called with each description of a table, before the log gets it.
    described: Callable[[bytes], bytes] = lambda payload: payload
    # A server that is polled sends nothing while it decodes, for as long as that takes.
    watches_silence: bool = True
    _fragmenter: Fragmenter = field(init=False)
    _tracker: AckTracker = field(init=False)
    _flushing: FlushPolicy = field(default_factory=FlushPolicy)
    # Commits that the log has taken and not yet flushed.
    _committed: list[int] = field(default_factory=list)
    _silence: LastingState = field(default_factory=LastingState)
    _prune_at: float = 0.0
    _over_budget: bool = False
    _has_received: bool = False

    def __post_init__(self) -> None:
        self._fragmenter = Fragmenter(self.log.complete_lsn, signal_prefix=PREFIX)
        self._tracker = AckTracker(self.log.complete_lsn)
        self.log.between_pieces = self._answer

    def run(self) -> None:
        """Until `stop`, then leave cleanly; raises what ends the connection."""
        now = time.monotonic()
        try:
            while not self.stop.is_set():
                decision = self.session.decide(now)
                if decision.give_up is not None:
                    raise decision.give_up
                if decision.send is not None:
                    self.connection.send(decision.send)
                now = self._turn(now, decision.wake_at)
        except LogAtBudget:
            self._leave()
            raise
        self._leave()

    def _leave(self) -> None:
        """Everything received is durable and confirmed, and the slot is free."""
        self._flush()
        now = time.monotonic()
        self.connection.send(self.session.final_status(now))
        self.connection.end()

    def _answer(self) -> None:
        """Keep the server from hanging up while one commit takes long."""
        decision = self.session.decide(time.monotonic())
        if decision.send is not None:
            self.connection.send(decision.send)

    def _turn(self, now: float, wake_at: float) -> float:
        """Receive and store what there is, or wait; returns the time."""
        self.keep_small(now)
        pending_bytes = self.log.pending_bytes
        flush_at = self._flushing.wake_at(now, pending_bytes=pending_bytes, unnoted=self._unnoted)
        pause_s = self._flushing.pause_s(now, pending_bytes=pending_bytes)
        if pause_s > 0 and not self.session.shutting_down:
            self.connection.pause(pause_s)
        run = self.connection.read(max(0.0, min(wake_at, flush_at) - now))
        now = time.monotonic()
        if run and not self._has_received:
            self._has_received = True
            self.on_first_message()
        self.session.receive(run, now)
        if self.watches_silence:
            self._watch_silence(now)
        self._store(run, now)
        if self._flushing.due(
            now,
            pending_bytes=self.log.pending_bytes,
            drained=not run,
            stepped=self.connection.took_a_step,
            unnoted=self._unnoted,
            urgent=self.session.shutting_down,
        ):
            self._flush()
            now = time.monotonic()
        return now

    def _watch_silence(self, now: float) -> None:
        """Log a server that does not answer long before the connection counts as dead."""
        silent_s = self.session.silent_s(now)
        if not silent_s:
            if self._silence.due_at() is not None:
                _log.info("server answers again")
                self._silence.end()
        elif self._silence.begin(now) or self._silence.is_due(now):
            _log.warning("server silent", silent_for=duration(silent_s), remedy=_SILENT)

    @property
    def _unnoted(self) -> bool:
        return self.session.received_lsn > self.log.complete_lsn

    def _store(self, run: list[memoryview], now: float) -> None:
        stored = store(self.log, self._fragmenter.feed(run), self.described)
        self._committed += map(self._tracker.register, stored.commits)
        for signal in stored.signals:
            if self.heartbeat.received(signal.content):
                self.session.heartbeat_received(now)

    def _flush(self) -> None:
        """Make everything received durable, and so confirmable."""
        self.log.flush(self.session.received_lsn)
        commits = bool(self._committed)
        for ack_id in self._committed:
            self._tracker.mark_published_by_id(ack_id)
        self._committed.clear()
        self.session.made_durable(self._durable())
        self._flushing.flushed(time.monotonic(), commits=commits)
        self.heartbeat.durable(time.monotonic())
        self.on_durable()

    def _durable(self) -> Lsn:
        """The log's position, never beyond an unpublished commit."""
        if self._tracker.pending_count:
            return self._tracker.frontier_lsn
        return self.log.complete_lsn

    def keep_small(self, now: float) -> None:
        """Let retention look, now and then; `LogAtBudget` if only consumers can make room."""
        if now < self._prune_at:
            return
        budget = self.retention.max_bytes
        self._prune_at = now + (_PRUNE_INTERVAL_S if budget is None else _BUDGET_INTERVAL_S)
        pruned = prune(self.log, self.retention)
        if pruned.segments:
            _log.info(
                "segments removed",
                count=len(pruned.segments),
                up_to_lsn=str(pruned.up_to_lsn),
                freed_bytes=pruned.freed_bytes,
            )
        for name in pruned.invalidated:
            _log.error("consumer released: the log reached its disk budget", consumer=name)
        if pruned.over_budget and not self._over_budget:
            _log.error("the log is beyond its disk budget: an open transaction needs all of it")
        self._over_budget = pruned.over_budget
        self.on_pruned(pruned, now)
        if pruned.full and budget is not None:
            raise LogAtBudget(self.log.where, budget)
