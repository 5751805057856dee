"""Tasks that read up to where the log ends when they run, not where it did when Spark planned them.

Between the plan of a small batch and its reading lie almost 80 ms, in which more has committed.
Whoever runs the tasks says so, and says how far it has got, by properties that Spark carries to
every task of its thread. Spark's own offsets then only say that there is something to read.

What one run of a task reads another need not, so the result of each may be used once only; the
row with the range says what it holds. Without the properties a task reads what was planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from pyspark import SparkContext, TaskContext

from penstock.changelog.planning import SHARE_BYTES
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Share
from penstock.lsn import Lsn
from penstock.spark.reading import Part, PenstockStreamReader

Extent = Literal["as planned", "to the end"]

_AFTER = "penstock.after"
_EXTENT = "penstock.extent"
# More than that is for the next batch, which shares it out.
_MOST_BYTES = SHARE_BYTES // 16


@contextmanager
def reading(context: SparkContext, after: Lsn, extent: Extent) -> Iterator[None]:
    """Tasks that this thread starts read what was planned for them and is after that."""
    try:
        context.setLocalProperty(_AFTER, str(after))
        context.setLocalProperty(_EXTENT, extent)
        yield
    finally:
        for name in (_AFTER, _EXTENT):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None removes it


class LateStreamReader(PenstockStreamReader):
    def _read_now(self, log: LogReader, part: Part) -> Part:
        context = TaskContext.get()
        if context is None or (after := context.getLocalProperty(_AFTER)) is None:
            return part
        to_the_end = context.getLocalProperty(_EXTENT) == "to the end"
        return read_late(log, part, Lsn.parse(after), to_the_end=to_the_end)


def read_late(log: LogReader, part: Part, after: Lsn, *, to_the_end: bool) -> Part:
    """What is left of a part after a position; the one with the range may go on to the end."""
    shares = [_beyond(share, after) for share in part.shares if share.up_to.lsn > after]
    if part.covered is None:
        return Part(tuple(shares))
    start, up_to = (_at_least(position, after) for position in part.covered)
    end = log.end() if to_the_end else up_to
    if end.lsn <= up_to.lsn or _committed_bytes(log, up_to, end) > _MOST_BYTES:
        end = up_to
    elif shares and shares[-1].fragments is None:
        shares[-1] = replace(shares[-1], up_to=end)
    else:
        shares.append(Share(up_to, end))
    return Part(tuple(shares), (start, end))


def _at_least(position: Position, lsn: Lsn) -> Position:
    """Where to look stays the same: what is there and before the LSN is left out."""
    return replace(position, lsn=max(position.lsn, lsn))


def _beyond(share: Share, after: Lsn) -> Share:
    return replace(share, after=_at_least(share.after, after))


def _committed_bytes(log: LogReader, after: Position, up_to: Position) -> int:
    blocks = log.headers(after, up_to)
    return sum(int(frames.fields["committed_bytes"].sum()) for frames in blocks)
