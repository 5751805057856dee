"""The oracle: what the log says, replayed, must equal what a SELECT says.

A `Mirror` is a reader of the log as any other. It refuses a change that could not happen to the
rows it holds, so a transaction that is missing or there twice is found at the first row it touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.changelog.reader import LogReader, Position
from penstock.lsn import Lsn
from penstock.postgres.messages import (
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Row,
    Truncate,
    Unchanged,
    Update,
)
from penstock.postgres.pgoutput import Decoder
from support.database import Database
from support.waiting import eventually

Text = str | None


class Mirror:
    """The tables as the log has them so far: table → key → column → text."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._position: Position | None = None
        self.tables: dict[str, dict[tuple[Text, ...], dict[str, Text]]] = {}
        self.commits: list[Lsn] = []

    def read(self) -> Mirror:
        """Replay what has come since the last time."""
        if self._position is None and not (self._directory / "head").exists():
            return self
        reader = LogReader(self._directory)
        start = self._position or reader.start()
        end = reader.end()
        for transaction in reader.transactions(start, end):
            last = self.commits[-1] if self.commits else reader.identity.start_lsn
            assert transaction.commit_lsn > last, f"{transaction.commit_lsn} comes after {last}"
            assert transaction.commit_lsn <= end.lsn
            self.commits.append(transaction.commit_lsn)
            self._replay(transaction.payloads)
        assert end.lsn >= start.lsn
        self._position = end
        return self

    @property
    def complete_lsn(self) -> Lsn:
        """Everything that committed at or below is here."""
        self.read()
        return self._position.lsn if self._position else Lsn(0)

    def rows(self, table: str) -> dict[tuple[Text, ...], dict[str, Text]]:
        return self.tables.get(table, {})

    def await_marker(self, database: Database, *, within_s: float = 30.0) -> None:
        """Until all that is committed now is in the log."""
        marker = str(database.value("INSERT INTO markers DEFAULT VALUES RETURNING id"))
        eventually(
            lambda: (marker,) in self.read().rows("markers"),
            f"marker {marker} in the log",
            within_s=within_s,
        )

    def must_equal(
        self, database: Database, table: str = "items", columns: Sequence[str] = ()
    ) -> None:
        """The rows are those that the database has. Nobody may be writing.

        `columns`: only these, where DDL has changed others in rows that the log saw before.
        """
        self.await_marker(database)
        rows = self.rows(table)
        if columns:
            rows = {key: {name: row[name] for name in columns} for key, row in rows.items()}
        columns = columns or [
            name
            for (name,) in database.rows(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass"
                " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                table,
            )
        ]
        texts = ", ".join(f'"{name}"::text' for name in columns)
        truth = [
            dict(zip(columns, row, strict=True))
            for row in database.rows(f"SELECT {texts} FROM {table}")
        ]
        assert len(rows) == len(truth), f"{len(rows)} rows in the log, {len(truth)} in the table"
        assert sorted(rows.values(), key=repr) == sorted(truth, key=repr)

    # --- replay ---------------------------------------------------------------------------------

    def _replay(self, payloads: tuple[bytes, ...]) -> None:
        decoder = Decoder(1, "off")
        relations: dict[int, Relation] = {}
        for payload in payloads:
            message = decoder.decode(payload)
            if isinstance(message, Relation):
                relations[message.oid] = message
            elif not isinstance(message, LogicalMessage):
                self._apply(message, relations)

    def _apply(self, message: Message, relations: dict[int, Relation]) -> None:
        if isinstance(message, Truncate):
            for oid in message.relation_oids:
                self.tables.pop(relations[oid].name, None)
            return
        assert isinstance(message, Insert | Update | Delete), message
        relation = relations[message.relation_oid]
        rows = self.tables.setdefault(relation.name, {})
        match message:
            case Insert(new=new):
                key = _key(relation, new)
                assert key not in rows, f"{relation.name} {key} was inserted twice"
                rows[key] = _named(relation, new, {})
            case Update(new=new):
                old_key = _key(relation, message.old_key or message.old_row or new)
                assert old_key in rows, f"{relation.name} {old_key} was updated, but is not there"
                before = rows.pop(old_key)
                rows[_key(relation, new)] = _named(relation, new, before)
            case Delete():
                key = _key(relation, message.old_key or message.old_row or ())
                assert key in rows, f"{relation.name} {key} was deleted, but is not there"
                del rows[key]


def _key(relation: Relation, row: Row) -> tuple[Text, ...]:
    return tuple(
        text_of(value)
        for column, value in zip(relation.columns, row, strict=True)
        if column.in_identity
    )


def _named(relation: Relation, row: Row, before: dict[str, Text]) -> dict[str, Text]:
    """By column; a TOASTed value that the update did not touch is the one from before."""
    named: dict[str, Text] = {}
    for column, value in zip(relation.columns, row, strict=True):
        if isinstance(value, Unchanged):
            named[column.name] = before[column.name]
        else:
            named[column.name] = text_of(value)
    return named


def text_of(value: object) -> Text:
    return value.decode() if isinstance(value, bytes) else None
