"""Spark's offsets: positions of one log, in JSON. A position of another log is refused. Thin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.changelog.planning import at_time
from penstock.changelog.reader import LogReader, Position
from penstock.errors import LogForeignPosition
from penstock.lsn import Lsn
from penstock.spark.options import Place

_VERSION = 1


def to_offset(reader: LogReader, position: Position) -> dict[str, Any]:
    return {
        "v": _VERSION,
        "log": str(reader.identity.log_id),
        "lsn": int(position.lsn),
        "segment": position.segment,
        "byte": position.byte_pos,
    }


def from_offset(reader: LogReader, offset: Mapping[str, Any]) -> Position:
    """Raises `LogForeignPosition`: of another log, or beyond the end of this one."""
    ours = str(reader.identity.log_id)
    if offset.get("v") != _VERSION or offset.get("log") != ours:
        raise LogForeignPosition(
            f"the checkpoint has a position of log {offset.get('log')}, and {reader.where} is "
            f"log {ours}",
            remedy=(
                "Correct the path, or start anew: a new checkpoint directory, and the target "
                "seeded again"
            ),
        )
    position = Position(Lsn(offset["lsn"]), offset["segment"], offset["byte"])
    end = reader.end().lsn
    if position.lsn > end:
        raise LogForeignPosition(
            f"the checkpoint is at {position.lsn}, beyond the end of the change log at {end}",
            remedy="The log was restored from an older copy: seed the target again",
            lsn=position.lsn,
        )
    return position


def place(reader: LogReader, wanted: Place) -> Position:
    """Where `startingPosition` or `endingPosition` is."""
    if wanted == "earliest":
        return reader.start()
    if wanted == "latest":
        return reader.end()
    if isinstance(wanted, Lsn):
        return reader.locate(wanted)
    return at_time(reader, wanted)
