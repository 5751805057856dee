"""What a benchmark says: figures with goals, the machine, the versions, every single run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `goal` is the least (`at_least`) or the most that was promised."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    @property
    def limit(self) -> str:
        return "at least" if self.at_least else "at most"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal,
            "met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    figures: list[Figure]
    # The single measurements behind the figures, in the order they were taken.
    runs: list[dict[str, Any]]
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return all(figure.met is not False for figure in self.figures)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "figures": [figure.as_dict() for figure in self.figures],
            "machine": asdict(machine()),
            "versions": {**_versions(), **self.versions},
            "runs": self.runs,
        }


@dataclass(frozen=True, slots=True)
class Machine:
    system: str
    processor: str
    cores: int
    memory_gib: float


def machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        memory_gib=round(memory / 2**30, 1),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("penstock", "psycopg", "pyarrow", "pyspark"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
