"""When to flush the log: little load gives low latency, much load gives large writes. Pure.

Flush when the socket is drained, so that a lone transaction waits for nobody; or when enough has
come together; or when the oldest of it has waited long enough. Where small commits follow each
other, each flush waits a few milliseconds for more of them, and nothing is read meanwhile: a flush
costs the same for one commit as for ten (decision 15). Behind a backlog the socket is drained all
the time, because we are faster than the server: where there is more than a little, more is waited
for, unless it was read in a step, which has done so. A position that comes from keepalives alone is
noted now and then only: it costs a sync.
"""

from __future__ import annotations

from dataclasses import dataclass

# Large enough that the cost of a sync is spread over many changes.
_ENOUGH_BYTES = 4 * 2**20
# Under load only: a drained socket flushes before that.
_LONGEST_WAIT_S = 0.05
# More than a few transactions: what a flush and a frame cost by themselves, here and for who reads
# them, would be more than what they hold (`bench pipeline`).
_LITTLE_BYTES = 2**16
_GATHER_S = 0.01
# So few that a pause costs nothing: what a server sends meanwhile has room in the socket's buffer.
_FEW_BYTES = 2**13
# Commits follow each other if the flush before is no longer ago than this.
_FOLLOW_S = 0.02
# How long a commit waits for those that follow it.
_FEW_GATHER_S = 0.005
_NOTE_INTERVAL_S = 1.0


@dataclass(slots=True)
class FlushPolicy:
    """Told after every run what there is; says whether to flush, and when to look again."""

    _waiting_since: float | None = None
    _flushed_at: float = float("-inf")
    # When commits were last flushed, and whether what is pending follows them.
    _commits_flushed_at: float = float("-inf")
    _follows: bool = False

    def due(
        self,
        now: float,
        *,
        pending_bytes: int,
        drained: bool,
        stepped: bool,
        unnoted: bool,
        urgent: bool,
    ) -> bool:
        """`stepped`: what was read had come together; `unnoted`: the received position is beyond
        the log's; `urgent`: the server waits.
        """
        if not pending_bytes:
            self._waiting_since = None
            return unnoted and (urgent or now - self._flushed_at >= _NOTE_INTERVAL_S)
        if self._waiting_since is None:
            self._waiting_since = now
            self._follows = now - self._commits_flushed_at < _FOLLOW_S
        waited_s = now - self._waiting_since
        if pending_bytes <= _FEW_BYTES and self._follows:
            gathered = has_paused = waited_s >= _FEW_GATHER_S
        else:
            gathered = pending_bytes <= _LITTLE_BYTES or waited_s >= _GATHER_S
            has_paused = False
        return (
            (drained and gathered)
            or stepped
            or has_paused
            or urgent
            or pending_bytes >= _ENOUGH_BYTES
            or waited_s >= _LONGEST_WAIT_S
        )

    def flushed(self, now: float, *, commits: bool) -> None:
        self._waiting_since = None
        self._flushed_at = now
        if commits:
            self._commits_flushed_at = now

    def pause_s(self, now: float, *, pending_bytes: int) -> float:
        """Return for how long to leave the socket alone, so that commits come together."""
        if self._waiting_since is None or not self._follows or pending_bytes > _FEW_BYTES:
            return 0.0
        return max(0.0, self._waiting_since + _FEW_GATHER_S - now)

    def wake_at(self, now: float, *, pending_bytes: int, unnoted: bool) -> float:
        """When something is due although nothing arrives."""
        if not pending_bytes:
            return self._flushed_at + _NOTE_INTERVAL_S if unnoted else float("inf")
        if pending_bytes <= _LITTLE_BYTES or self._waiting_since is None:
            return now
        return self._waiting_since + _GATHER_S
