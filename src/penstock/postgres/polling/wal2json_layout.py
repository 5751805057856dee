"""How the values of one document become one record: which stands where. Pure.

All documents of a table that name the same columns have one layout, so it is worked out once. The
hot path of polling with wal2json is `Layout.record`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.errors import NumberNotInJson
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.postgres.polling import records

OldTuple: TypeAlias = Literal["none", "key", "key if changed", "row"]
"""What stands before the new row: nothing, 'K', 'K' unless it equals the new one, or 'O'."""

# real, double precision and numeric: what wal2json writes as null may be NaN or an infinity.
NUMBER_OIDS = frozenset((700, 701, 1700))


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of the document: of the new row first, then of the old one."""

    column: str
    type_oid: int
    # The table allows no NULL there.
    not_null: bool
    # Another document with null there has this layout too.
    may_be_null: bool

    @property
    def is_lost_if_null(self) -> bool:
        return self.not_null and self.type_oid in NUMBER_OIDS


@dataclass(frozen=True, slots=True)
class Layout:
    kind: Literal["I", "U", "D"]
    table: TableName
    oid: int
    slots: tuple[Slot, ...]
    # For each column of the relation, the place of its value. None: unchanged, or not known.
    new: tuple[int | None, ...]
    old: tuple[int | None, ...]
    old_tuple: OldTuple
    # The places of each identity column: in the new row, if it is there, and in the old one.
    pairs: tuple[tuple[int | None, int], ...]
    _head: bytes = field(init=False)
    _new_head: bytes = field(init=False)
    _old_head: bytes = field(init=False)
    # With the places behind the last value for what is unchanged, and for NULL.
    _new_places: tuple[int, ...] = field(init=False)
    _old_places: tuple[int, ...] = field(init=False)
    # The new row is the first values in their order.
    _new_first: bool = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.new).to_bytes(2, "big")
        unchanged, null = len(self.slots), len(self.slots) + 1
        letter = b"O" if self.old_tuple == "row" else b"K"
        made = {
            "_head": self.kind.encode() + self.oid.to_bytes(4, "big"),
            "_new_head": b"N" + count,
            "_old_head": letter + count,
            "_new_places": tuple(unchanged if at is None else at for at in self.new),
            "_old_places": tuple(null if at is None else at for at in self.old),
            "_new_first": self.new == tuple(range(len(self.new))),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def check(self, lsn: Lsn, texts: Sequence[bytes | None]) -> None:
        """Refuse a null that stands for a number."""
        for slot, text in zip(self.slots, texts, strict=True):
            if text is None and slot.is_lost_if_null:
                raise NumberNotInJson(self.table, slot.column, lsn=lsn)

    def record(self, lsn: Lsn, texts: Sequence[bytes | None]) -> bytes:
        """Return the XLogData of the change that has these values, one for each slot."""
        values = records.values(texts)
        kind, old_tuple = self.kind, self.old_tuple
        if kind == "I":
            return records.xlog(lsn, self._head + self._new_head + b"".join(values))
        parts = [self._head]
        values += (records.UNCHANGED, records.NULL)
        if old_tuple == "key if changed" and kind == "U" and self._key_stays(texts):
            old_tuple = "none"
        if old_tuple != "none":
            parts.append(self._old_head)
            parts += [values[place] for place in self._old_places]
        if kind != "D":
            parts.append(self._new_head)
            if self._new_first:
                parts += values[: len(self.new)]
            else:
                parts += [values[place] for place in self._new_places]
        return records.xlog(lsn, b"".join(parts))

    def _key_stays(self, texts: Sequence[bytes | None]) -> bool:
        """Say whether the new row has the old identity; pgoutput then sends no old one."""
        for new, old in self.pairs:  # noqa: SIM110 -- a generator takes twice as long
            if new is None or texts[new] != texts[old]:
                return False
        return True
