"""What set-up and tear-down do: steps, each for one database, and a plan of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The source's own database, among those that steps are for.
SOURCE = "[source]"


@dataclass(frozen=True, slots=True)
class Step:
    """One transaction. The runner makes and drops slots in its own way, for they wait."""

    title: str
    statements: tuple[str, ...]
    kind: Literal["statements", "create slot", "drop slot"] = "statements"
    # Takes back what the step made, if a later one fails.
    undo: str | None = None
    # Where it runs: the section of the configuration that leads there.
    database: str = SOURCE

    @property
    def sql(self) -> str:
        return "\n".join(f"{statement};" for statement in self.statements)


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[Step, ...]
    # What the person should know although nothing is done about it.
    notes: tuple[str, ...] = ()
