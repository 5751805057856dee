"""What `changes.py` must give, one row at a time: to be read, and to hold the other one against.

Not for use: it is some fifty times slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.changelog.runs import Run
from penstock.decode.changes import Wanted
from penstock.decode.definition import Definition
from penstock.decode.text import Unrepresentable, parse
from penstock.postgres.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    Message,
    Row,
    Truncate,
    Update,
    moment,
)
from penstock.postgres.pgoutput import Decoder

_PLAIN = Decoder(1, "off")


def rows(run: Run, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The table's changes in a run. What would be an error there is NULL or left out here."""
    definitions = [Definition.parse(messages) for messages in run.definitions]
    for index in range(len(run.start)):
        message = _message(run, index)
        metadata = {
            "_commit_version": int(run.commit_lsn[index]),
            "_commit_timestamp": moment(int(run.commit_us[index])),
            "_seq": int(run.seq[index]),
            "_xid": int(run.xid[index]),
        }
        if isinstance(message, Truncate):
            emptied = {definitions[which].table for at, which in run.emptied if at == index}
            if wanted.on_truncate == "emit" and wanted.table in emptied:
                yield {
                    **dict.fromkeys(name for name, _ in wanted.columns),
                    "_change_type": "truncate",
                    **metadata,
                    "_unchanged": [],
                    "_absent": [],
                }
            continue
        definition = definitions[run.definition[index]]
        if definition.table == wanted.table:
            for change, known, unchanged, absent in _images(message, definition, wanted):
                yield {
                    **_values(known, definition, wanted),
                    "_change_type": change,
                    **metadata,
                    "_unchanged": unchanged,
                    "_absent": absent,
                }


def _message(run: Run, index: int) -> Message:
    payload = run.buffer[int(run.start[index]) : int(run.end[index])]
    return _PLAIN.decode(payload[:1] + payload[5:] if run.streamed[index] else payload)


def _images(
    message: Message, definition: Definition, wanted: Wanted
) -> Iterator[tuple[str, dict[str, bytes | None], list[str], list[str]]]:
    """Each image: what it shows, the values that are known, and the names of those that are not."""
    columns = [column for column in definition.relation.columns if _is_wanted(column, wanted)]
    # The table does not have them.
    missing = [name for name, _ in wanted.columns if definition.index(name) is None]

    def known(row: Row, which: list[Column]) -> dict[str, Any]:
        of = dict(zip((c.name for c in definition.relation.columns), row, strict=True))
        return {c.name: of[c.name] for c in which if of[c.name] is not UNCHANGED}

    def old(key: Row | None, row: Row | None, new: Row | None) -> dict[str, Any]:
        if row is not None:
            return known(row, columns)
        identity = [column for column in columns if column.in_identity]
        if key is not None:
            # An identity has no NULL: it stands for what a partition's own identity leaves out.
            return {name: v for name, v in known(key, identity).items() if v is not None}
        # Nothing was sent, so the identity has not changed; of a whole row that says nothing.
        if new is None or definition.relation.replica_identity == "f":
            return {}
        return known(new, identity)

    def others(given: dict[str, Any], *besides: str) -> list[str]:
        return [name for name, _ in wanted.columns if name not in {*given, *besides}]

    match message:
        case Insert(new=new):
            after = known(new, columns)
            yield "insert", after, others(after, *missing), missing
        case Delete(old_key=key, old_row=row):
            before = old(key, row, None)
            yield "delete", before, [], others(before)
        case Update(old_key=key, old_row=row, new=new):
            before = old(key, row, new)
            if wanted.preimages:
                yield "update_preimage", before, [], others(before)
            # A value that was not sent again may have been sent with the old row.
            sent_before = before if key is not None or row is not None else {}
            after = {**sent_before, **known(new, columns)}
            yield "update_postimage", after, others(after, *missing), missing


def _is_wanted(column: Column, wanted: Wanted) -> bool:
    return column.name in dict(wanted.columns)


def _values(
    known: dict[str, bytes | None], definition: Definition, wanted: Wanted
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in wanted.columns:
        text, place = known.get(name), definition.index(name)
        try:
            if text is None or place is None:
                found[name] = None
            else:
                found[name] = parse(text, kind.reading(definition.types[place]))
        except Unrepresentable:
            found[name] = None
    return found
