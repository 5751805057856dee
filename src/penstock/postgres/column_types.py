"""The type of a column's values below any domains, as the catalog has it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.names import quote


@dataclass(frozen=True, slots=True)
class BaseType:
    # As in pg_type: "int4", "numeric", "timestamptz".
    name: str
    # As SQL writes it, with its modifier, and with its schema if a user made it.
    sql: str
    # -1: none.
    modifier: int = -1
    # The server brought it along; every other database has it too.
    builtin: bool = True
    is_enum: bool = False
    # Of an enum: the characters of its longest label.
    label_chars: int = 0
    is_array: bool = False

    @property
    def cast(self) -> str:
        """What to cast to: without a modifier, for a cast cuts off in silence what an assignment
        refuses. `character` would be a `char(1)`, `bpchar` is not.
        """
        return f"pg_catalog.{quote(self.name)}" if self.builtin else self.sql

    @property
    def limits(self) -> tuple[int, int] | None:
        """Precision and scale of a numeric that has them."""
        if self.name != "numeric" or self.modifier < 0:
            return None
        return numeric_limits(self.modifier)


def numeric_limits(modifier: int) -> tuple[int, int]:
    """Precision and scale of `numeric(precision, scale)`.

    >>> numeric_limits(655366)  # numeric(10, 2)
    (10, 2)
    """
    packed = modifier - 4
    precision, scale = packed >> 16 & 0xFFFF, packed & 0x7FF
    # The scale is a signed number of 11 bits: numeric(2, -3) counts thousands.
    return precision, scale - 0x800 if scale >= 0x400 else scale
