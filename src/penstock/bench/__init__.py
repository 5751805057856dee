"""`penstock bench NAME`: figures, each beside its goal and, where there is one, a peer's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from penstock.bench.progress import Progress
from penstock.bench.report import Report


def _named(name: str) -> Callable[[Progress], Report]:
    """What a benchmark needs, Spark for some, is imported when it runs."""

    def run(progress: Progress) -> Report:
        module = import_module(f"penstock.bench.{name}")
        report: Report = getattr(module, f"bench_{name}")(progress)
        return report

    return run


BENCHES: dict[str, Callable[[Progress], Report]] = {
    name: _named(name)
    for name in (
        *("receive", "tracker", "capture", "memory", "latency", "writer", "flood"),
        *("decode", "source", "small", "pipeline", "polling", "freshness", "seed"),
    )
}
