"""A log as a flat list of changes, each with the identity that it has for ever."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from penstock.changelog.reader import CommitRef, LogReader, Position
from penstock.lsn import Lsn
from penstock.postgres.messages import Message, Relation, Truncate
from penstock.postgres.pgoutput import Decoder
from support.database import Database
from support.oracle import text_of
from support.workload import PUBLICATION

# Changes of rows and truncates have a number within their transaction; logical messages do not.
_NUMBERED = frozenset(b"IUDT")


@dataclass(frozen=True, slots=True)
class Change:
    """(commit_lsn, seq) is its identity; the rest must follow from that."""

    commit_lsn: Lsn
    seq: int
    xid: int
    committed_us: int
    tables: tuple[str, ...]
    columns: tuple[str, ...]
    message: Message

    @property
    def kind(self) -> str:
        return type(self.message).__name__

    def new(self) -> dict[str, str | None]:
        """The new row, by column; empty if there is none."""
        row = getattr(self.message, "new", ())
        return {name: text_of(value) for name, value in zip(self.columns, row, strict=False)}


def changes(directory: Path, after: Position | None = None) -> list[Change]:
    """Everything in the log, in its order; numbers are checked against what the commits say."""
    reader = LogReader(directory)
    found: list[Change] = []
    for commit in reader.commits(after or reader.start(), reader.end()):
        of_commit = _of_commit(reader, commit)
        assert [change.seq for change in of_commit] == list(range(commit.changes))
        found += of_commit
    return found


def _of_commit(reader: LogReader, commit: CommitRef) -> list[Change]:
    decoder = Decoder(1, "off")
    found = []
    for ref in commit.fragments:
        seq = ref.first_seq
        for _, payload, definitions in reader._changes(ref, commit.aborted):
            if payload[0] not in _NUMBERED:
                continue
            relations = [decoder.decode(definition) for definition in definitions.values()]
            described = [relation for relation in relations if isinstance(relation, Relation)]
            message = decoder.decode(payload)
            # Truncates may be of several tables: columns say nothing then.
            columns = () if isinstance(message, Truncate) else described[0].columns
            found.append(
                Change(
                    commit.lsn,
                    seq,
                    commit.xid,
                    commit.time_us,
                    tuple(f"{relation.namespace}.{relation.name}" for relation in described),
                    tuple(column.name for column in columns),
                    message,
                )
            )
            seq += 1
    return found


def commits_of_server(database: Database, slot: str) -> list[Lsn]:
    """The end of each commit with changes, in commit order, as the server itself decodes them."""
    rows = database.rows(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', %s)",
        slot,
        PUBLICATION,
    )
    found, changed = [], 0
    for (data,) in rows:
        if data[:1] == b"C":
            if changed:
                found.append(Lsn(int.from_bytes(data[10:18], "big")))
            changed = 0
        else:
            changed += data[0] in _NUMBERED
    return found


def must_match_journal(found: list[Change], database: Database) -> None:
    """Each transaction once, whole, each session's in its order, and exactly those that committed.

    The last change of every transaction is its entry in the journal, with the number of changes
    before it, as the database itself counted them.
    """
    entries: list[tuple[int, int, int]] = []
    for _, group in groupby(found, lambda change: change.commit_lsn):
        transaction = list(group)
        if transaction[-1].tables == ("public.markers",):
            continue
        assert transaction[-1].tables == ("public.journal",), transaction[-1]
        entry = transaction[-1].new()
        writer, number, counted = (
            int(entry[name] or 0) for name in ("writer", "number", "counted")
        )
        assert counted == len(transaction) - 1, "whole transactions only"
        entries.append((writer, number, counted))
    lsns = [change.commit_lsn for change in found]
    assert lsns == sorted(lsns)
    for writer in {writer for writer, _, _ in entries}:
        numbers = [number for of, number, _ in entries if of == writer]
        assert numbers == sorted(set(numbers)), f"session {writer} in its own order"
    truth = database.rows("SELECT writer, number, counted FROM journal ORDER BY 1, 2")
    assert sorted(entries) == truth
    for change in found:
        for column, value in change.new().items():
            if column.startswith("extra_"):
                assert value in (None, "extra_" + column.split("_")[1]), (column, value)
