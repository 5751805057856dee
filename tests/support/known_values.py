"""What a change in the log tells of its rows: the values that readers may rely on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.postgres.messages import UNCHANGED, Delete, Insert, Message, Relation, Update


@dataclass
class Image:
    """A change as readers of the log see it: what is known of the new row, and of the old."""

    kind: str
    new: dict[str, Any] = field(default_factory=dict)
    old: dict[str, Any] = field(default_factory=dict)


def images(messages: Iterable[Message]) -> list[Image]:
    """The changes of rows, with what `decode` would say is known."""
    relations: dict[int, Relation] = {}
    found = []
    for message in messages:
        if isinstance(message, Relation):
            relations[message.oid] = message
        elif isinstance(message, Insert | Update | Delete):
            found.append(image(message, relations[message.relation_oid]))
    return found


def image(message: Insert | Update | Delete, relation: Relation) -> Image:
    names = [column.name for column in relation.columns]
    identity = [column.name for column in relation.columns if column.in_identity]
    if relation.replica_identity == "f":
        assert identity == names

    def row(values: Any) -> dict[str, Any]:
        return dict(zip(names, values, strict=True))

    if isinstance(message, Insert):
        return Image("I", row(message.new))
    new = row(message.new) if isinstance(message, Update) else {}
    if message.old_row is not None:
        return Image(type(message).__name__[0], new, row(message.old_row))
    if message.old_key is not None:
        key = row(message.old_key)
        assert all(key[name] is None for name in names if name not in identity)
        old = {name: key[name] for name in identity if key[name] is not None}
        return Image(type(message).__name__[0], new, old)
    assert isinstance(message, Update)
    if relation.replica_identity == "f":
        return Image("U", new, {})
    return Image("U", new, {n: new[n] for n in identity if new[n] is not UNCHANGED})
