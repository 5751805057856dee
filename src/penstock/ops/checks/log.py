"""The change log: does anybody hold it back who is no longer there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.config import LogConfig
from penstock.ops.findings import Finding
from penstock.pipelines.held_log import LeftConsumer


def check_left_consumers(log: LogConfig, left: Iterable[LeftConsumer]) -> Iterator[Finding]:
    if log.max_gib is None:
        why = "The log grows without end."
    elif log.on_full == "wait":
        why = "When the log has reached max_gib, capture waits, and the server's WAL grows instead."
    else:
        why = "The log grows up to max_gib."
    for each in left:
        yield Finding("log_consumer", "warning", each.name, each.problem, why, each.remedy)
