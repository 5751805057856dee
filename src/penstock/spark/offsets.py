"""Spark's offsets: positions of one log, in JSON. A position of another log is refused. Thin.

Spark keeps the end of each batch, and takes the end of the one before for its start. The first
batch has none before it: Spark asks for the start anew, even when it repeats that batch after a
restart, and `latest`, `earliest` and a time are somewhere else by then. So the end of the first
batch says where it began (`since`), and what it is told for the start says so (`initial`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.changelog.planning import at_time
from penstock.changelog.reader import LogReader, Position
from penstock.errors import BadOption, LogForeignPosition, LogRetired
from penstock.lsn import Lsn
from penstock.spark.options import Place

_VERSION = 1


def to_offset(
    reader: LogReader, position: Position, start: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`start`: of the batch that ends here."""
    offset = {"v": _VERSION, "log": str(reader.identity.log_id), **_fields(position)}
    if start is not None and start.get("initial"):
        offset["since"] = _fields(_position(start))
    return offset


def initial_offset(reader: LogReader, position: Position) -> dict[str, Any]:
    """Where a stream begins that has no checkpoint yet."""
    return {**to_offset(reader, position), "initial": True}


def from_offset(reader: LogReader, offset: Mapping[str, Any]) -> Position:
    """Raises `LogForeignPosition`: of another log, or beyond the end of this one."""
    ours = str(reader.identity.log_id)
    if offset.get("v") != _VERSION:
        raise LogForeignPosition(
            f"the checkpoint has a position of version {offset.get('v')}, and this Penstock reads "
            f"version {_VERSION}",
            remedy="Run the query with the Penstock that wrote the checkpoint, or a newer one",
        )
    if offset.get("log") != ours:
        raise LogForeignPosition(
            f"the checkpoint has a position of log {offset.get('log')}, and {reader.where} is "
            f"log {ours}",
            remedy=(
                "Correct the path, or start anew: a new checkpoint directory, and the target "
                "seeded again"
            ),
        )
    position = _position(offset)
    end = reader.end().lsn
    if position.lsn > end:
        raise LogForeignPosition(
            f"the checkpoint is at {position.lsn}, beyond the end of the change log at {end}",
            remedy=(
                "If capture is not running, start it first: after a power failure it finds the end "
                "anew. If that does not help, the log was restored from an older copy: seed the "
                "target again"
            ),
            lsn=position.lsn,
        )
    return position


def range_of(
    reader: LogReader, start: Mapping[str, Any], end: Mapping[str, Any]
) -> tuple[Position, Position]:
    """What a batch covers."""
    up_to = from_offset(reader, end)
    after = _position(end["since"]) if "since" in end else from_offset(reader, start)
    if after.lsn > up_to.lsn:
        raise LogForeignPosition(
            f"the checkpoint has a batch from {after.lsn} to {up_to.lsn}, before its start",
            remedy="Start anew: a new checkpoint directory, and the target seeded again",
            lsn=after.lsn,
        )
    return after, up_to


def beginning(reader: LogReader, wanted: Place) -> Position:
    """Where a stream begins that has no checkpoint."""
    if isinstance(wanted, datetime) and wanted > datetime.now(UTC):
        raise BadOption(
            f"startingPosition {wanted.isoformat()} is in the future",
            remedy="Begin with latest, and filter by the time of the commit",
            option="startingPosition",
        )
    return place(reader, wanted)


def place(reader: LogReader, wanted: Place) -> Position:
    """Where `startingPosition` or `endingPosition` is."""
    if wanted == "earliest":
        return reader.start()
    if wanted == "latest":
        return reader.end()
    if isinstance(wanted, Lsn):
        try:
            return reader.locate(wanted)
        except (LogRetired, LogForeignPosition) as error:
            held = f"after {reader.start().lsn} and up to {reader.end().lsn}"
            remedy = f"Give another position: the log holds what commits {held}"
            raise type(error)(error.problem, remedy=remedy, lsn=wanted) from None
    return at_time(reader, wanted)


def _fields(position: Position) -> dict[str, Any]:
    return {"lsn": int(position.lsn), "segment": position.segment, "byte": position.byte_pos}


def _position(offset: Mapping[str, Any]) -> Position:
    return Position(Lsn(offset["lsn"]), offset["segment"], offset["byte"])
