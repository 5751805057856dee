"""When to flush the log: little load gives low latency, much load gives large writes. Pure.

Flush when the socket is drained, so that a lone transaction waits for nobody; or when enough has
come together; or when the oldest of it has waited long enough. Behind a backlog the socket is
drained all the time, for we are faster than the server: where there is more than a little, more is
waited for, unless it was read in a step, which has done so. A position that comes from keepalives
alone is noted now and then only: it costs a sync.
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
_NOTE_INTERVAL_S = 1.0


@dataclass(slots=True)
class FlushPolicy:
    """Told after every run what there is; says whether to flush, and when to look again."""

    _waiting_since: float | None = None
    _flushed_at: float = float("-inf")

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
        waited_s = now - self._waiting_since
        gathered = pending_bytes <= _LITTLE_BYTES or waited_s >= _GATHER_S
        return (
            (drained and gathered)
            or stepped
            or urgent
            or pending_bytes >= _ENOUGH_BYTES
            or waited_s >= _LONGEST_WAIT_S
        )

    def flushed(self, now: float) -> None:
        self._waiting_since = None
        self._flushed_at = now

    def wake_at(self, now: float, *, pending_bytes: int, unnoted: bool) -> float:
        """When something is due although nothing arrives."""
        if not pending_bytes:
            return self._flushed_at + _NOTE_INTERVAL_S if unnoted else float("inf")
        if pending_bytes <= _LITTLE_BYTES or self._waiting_since is None:
            return now
        return self._waiting_since + _GATHER_S
