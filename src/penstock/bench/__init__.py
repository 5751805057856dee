"""`penstock bench NAME`: figures, each beside its goal and, where there is one, a peer's."""

from __future__ import annotations

from collections.abc import Callable

from penstock.bench.progress import Progress
from penstock.bench.receive import bench_receive
from penstock.bench.report import Report
from penstock.bench.tracker import bench_tracker

BENCHES: dict[str, Callable[[Progress], Report]] = {
    "receive": bench_receive,
    "tracker": bench_tracker,
}
