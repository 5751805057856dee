"""`penstock bench NAME`: figures, each beside its goal and, where there is one, a peer's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from penstock.bench.capture import bench_capture
from penstock.bench.flood import bench_flood
from penstock.bench.latency import bench_latency
from penstock.bench.memory import bench_memory
from penstock.bench.progress import Progress
from penstock.bench.receive import bench_receive
from penstock.bench.report import Report
from penstock.bench.tracker import bench_tracker


def _on_spark(name: str) -> Callable[[Progress], Report]:
    """Spark is an extra, and slow to import: only when it is asked for."""

    def run(progress: Progress) -> Report:
        module = import_module(f"penstock.bench.{name}")
        report: Report = getattr(module, f"bench_{name}")(progress)
        return report

    return run


BENCHES: dict[str, Callable[[Progress], Report]] = {
    "receive": bench_receive,
    "tracker": bench_tracker,
    "capture": bench_capture,
    "memory": bench_memory,
    "latency": bench_latency,
    "flood": bench_flood,
    "decode": _on_spark("decode"),
    "source": _on_spark("source"),
    "pipeline": _on_spark("pipeline"),
    "freshness": _on_spark("freshness"),
    "seed": _on_spark("seed"),
}
