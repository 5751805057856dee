"""How many events a second the tracker follows from register to ack, on one core.

The dearest case: every event has an LSN of its own, and a thousand are in flight.
"""

from __future__ import annotations

import statistics
import time

from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.capture.acks import AckTracker
from penstock.lsn import Lsn

EVENTS = 1_000_000
_IN_FLIGHT = 1_000
_REPEATS = 5
_GOAL_RATE = 1_000_000


def bench_tracker(progress: Progress, *, events: int = EVENTS) -> Report:
    lsns = [Lsn(lsn) for lsn in range(100, 100 * (events + 1), 100)]
    rates = []
    for repeat in range(1, _REPEATS + 1):
        rates.append(_rate(lsns))
        progress(f"run {repeat} of {_REPEATS}: {rates[-1]:,.0f} pairs/s")
    return Report(
        "tracker",
        [Figure("register + ack", round(statistics.median(rates)), "pairs/s", _GOAL_RATE)],
        [{"pairs_per_s": round(rate)} for rate in rates],
    )


def _rate(lsns: list[Lsn]) -> float:
    tracker = AckTracker()
    register, ack = tracker.register, tracker.mark_published_by_id
    started = time.perf_counter()
    for ack_id, lsn in enumerate(lsns, start=1 - _IN_FLIGHT):
        register(lsn)
        if ack_id > 0:
            ack(ack_id)
    for ack_id in range(len(lsns) - _IN_FLIGHT + 1, len(lsns) + 1):
        ack(ack_id)
    seconds = time.perf_counter() - started
    if tracker.frontier_lsn != lsns[-1]:
        raise RuntimeError(f"the frontier ended at {tracker.frontier_lsn}, not at {lsns[-1]}")
    return len(lsns) / seconds
