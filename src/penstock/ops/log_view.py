"""A log for people: facts about it, and its transactions as lines. Pure but for the reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from penstock.changelog.checking import Checked
from penstock.changelog.consumers import Consumer, consumers
from penstock.changelog.maintenance import Pruned
from penstock.changelog.reader import LogReader
from penstock.errors import LogRetired
from penstock.lsn import Lsn
from penstock.names import quote
from penstock.words import counted


def describe(reader: LogReader) -> dict[str, Any]:
    """What `penstock log info` tells, ready for JSON."""
    identity, head, start, end = reader.identity, reader.head(), reader.start(), reader.end()
    numbers = range(head.first_segment, head.last_segment + 1)
    size = 0
    for number in numbers:
        with suppress(LogRetired):  # just now
            size += reader.visible_end(number, head)
    return {
        "id": str(identity.log_id),
        "system_id": identity.system_id,
        "timeline": identity.timeline,
        "database": identity.database,
        "slot": identity.slot,
        "created_at": identity.created_at,
        "start_lsn": str(start.lsn),
        "complete_lsn": str(end.lsn),
        "segments": len(numbers),
        "first_segment": head.first_segment,
        "last_segment": head.last_segment,
        "bytes": size,
        "oldest_open_segment": head.open_segment or None,
        "writer_epoch": head.epoch,
        "consumers": consumer_rows(consumers(reader.storage), end.lsn),
    }


def in_words(facts: dict[str, Any]) -> Iterator[str]:
    source = f'database "{facts["database"]}", slot "{facts["slot"]}"'
    yield f"log        {facts['id']}, made {facts['created_at']}"
    yield f"source     {source}, server {facts['system_id']}, timeline {facts['timeline']}"
    yield f"complete   from {facts['start_lsn']} up to {facts['complete_lsn']}"
    yield f"size       {counted(facts['bytes'], 'byte')} in {counted(facts['segments'], 'segment')}"
    for row in facts["consumers"]:
        yield f"consumer   {row['name']}: applied {row['applied_lsn']}"


def consumer_rows(known: Iterable[Consumer], complete_lsn: Lsn) -> list[dict[str, Any]]:
    return [
        {
            "name": consumer.name,
            "applied_lsn": str(consumer.applied_lsn),
            "behind_bytes": max(0, complete_lsn - consumer.applied_lsn),
            "updated_at": consumer.updated_at,
            "invalidated": consumer.invalidated,
        }
        for consumer in known
    ]


def checked_as_json(checked: Checked) -> dict[str, Any]:
    return {**asdict(checked), "damage": None}


def pruned_as_json(pruned: Pruned) -> dict[str, Any]:
    up_to = pruned.up_to_lsn
    return {**asdict(pruned), "up_to_lsn": None if up_to is None else str(up_to)}


def transaction_lines(
    transaction: dict[str, Any], changes: Iterable[dict[str, Any]]
) -> Iterator[str]:
    """A transaction, then its fragments, then its changes."""
    yield (
        f"commit {transaction['commit_lsn']}  xid {transaction['xid']}  "
        f"{transaction['committed_at']}  {counted(transaction['change_count'], 'change')}"
    )
    for fragment in transaction["fragments"]:
        yield (
            f"  fragment in segment {fragment['segment']} at {fragment['position']}, "
            f"from seq {fragment['first_seq']}"
        )
    for change in changes:
        yield f"  {_change_line(change)}"


def transaction_json(
    transaction: dict[str, Any],
    changes: Iterable[dict[str, Any]],
    dumps: Callable[[dict[str, Any]], str],
) -> Iterator[str]:
    """The pieces of one JSON object, with the changes as its last member."""
    yield dumps(transaction).removesuffix("}") + ', "changes": ['
    separator = ""
    for change in changes:
        yield separator + dumps(change)
        separator = ", "
    yield "]}"


def _change_line(change: dict[str, Any]) -> str:
    if change["kind"] == "truncate":
        return f"{change['seq']:>6} truncate {', '.join(change['tables'])}"
    images = [
        f"{name} {_image(change[name])}" for name in ("old", "new") if change.get(name) is not None
    ]
    return f"{change['seq']:>6} {change['kind']} {change['table']}  {'  '.join(images)}"


def _image(row: dict[str, str | None]) -> str:
    """Names as SQL writes them, values in quotes: no value can look like something else."""
    return " ".join(
        f"{quote(name)}={'NULL' if value is None else _quoted(value)}"
        for name, value in row.items()
    )


def _quoted(text: str) -> str:
    """Nothing that a terminal would obey."""
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped)
