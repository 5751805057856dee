"""A small log of notes, as tests of the Spark source write it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.changelog.identity import LogIdentity
from penstock.changelog.settings import LogSettings
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
from penstock.postgres.messages import Column, Insert, Message, Relation
from support.logs import IDENTITY, append_transaction

NOTES = Relation(
    oid=16400,
    namespace="public",
    name="notes",
    replica_identity="i",
    columns=(
        Column(in_identity=True, name="id", type_oid=23, type_modifier=-1),
        Column(in_identity=True, name="status", type_oid=25, type_modifier=-1),
        Column(in_identity=False, name="body", type_oid=25, type_modifier=-1),
    ),
)
OTHER = Relation(16500, "public", "other", "d", (Column(True, "id", 23, -1),))


class Log:
    """A log that a test writes."""

    def __init__(
        self,
        path: Path,
        settings: LogSettings | None = None,
        identity: LogIdentity = replace(IDENTITY, start_lsn=Lsn(0x100)),  # noqa: B008 - a value
    ) -> None:
        self.path = path
        self.writer = LogWriter(path, identity, settings)

    def append(self, lsn: int, *messages: Message) -> None:
        """One transaction of the given changes, durable and visible."""
        append_transaction(self.writer, lsn, *messages)

    def insert(self, lsn: int, *ids: int) -> None:
        rows = [Insert(16400, (str(each).encode(), b"new", None)) for each in ids]
        self.append(lsn, NOTES, *rows)
