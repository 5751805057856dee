"""What the log keeps for aggregates: each is a consumer of it, by a name of its own. One that is no
longer declared holds the log until it is forgotten.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.changelog.consumers import consumers
from penstock.changelog.reader import LogReader
from penstock.declarations import AggregateConfig
from penstock.lsn import Lsn
from penstock.words import counted

_PREFIX = "aggregate-"


def consumer_of(aggregate: str) -> str:
    """Under which name the log keeps what an aggregate still needs."""
    return f"{_PREFIX}{aggregate}"


@dataclass(frozen=True, slots=True)
class LeftConsumer:
    """One of an aggregate that nobody declares."""

    name: str
    applied_lsn: Lsn
    behind_bytes: int

    @property
    def aggregate(self) -> str:
        return self.name.removeprefix(_PREFIX)

    @property
    def problem(self) -> str:
        return (
            f"the change log keeps everything after {self.applied_lsn} for consumer {self.name}, "
            f"which is {counted(self.behind_bytes, 'byte')} behind, and no such aggregate is "
            "declared"
        )

    @property
    def remedy(self) -> str:
        forget = f"penstock log consumers --forget {shlex.quote(self.name)}"
        return f"If no other file has it either, run `{forget}`"


def left_consumers(declared: Iterable[AggregateConfig], log: LogReader) -> list[LeftConsumer]:
    """Those that hold the log. It may be wanted: they may be declared in another file."""
    known = {consumer_of(each.name) for each in declared}
    end = log.end().lsn
    return [
        LeftConsumer(each.name, each.applied_lsn, max(0, end - each.applied_lsn))
        for each in consumers(log.storage)
        if each.name.startswith(_PREFIX) and each.name not in known and not each.invalidated
    ]
