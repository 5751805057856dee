"""Where the values of many rows stand: a walk over columns, not over rows. Pure.

All rows are of one table, described the same way. Column after column, the arrays of positions say
what each row has there and how long it is, and so where the next column begins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.decode.columns import Mask
from penstock.decode.octets import Octets, Positions
from penstock.errors import ProtocolViolation

TEXT, NULL, UNCHANGED = (ord(kind) for kind in "tnu")


@dataclass(frozen=True, slots=True)
class Cells:
    """One column: for each row what it has there, and if it is text, where that stands."""

    kind: npt.NDArray[np.uint8]
    start: Positions
    length: Positions

    def replaced(self, mask: Mask, others: Cells, rows: Positions) -> Cells:
        """Where `mask` is true, what `others` has in `rows` instead."""
        kind, start, length = self.kind.copy(), self.start.copy(), self.length.copy()
        kind[mask], start[mask] = others.kind[rows], others.start[rows]
        length[mask] = others.length[rows]
        return Cells(kind, start, length)


def walk(
    octets: Octets,
    at: Positions,
    end: Positions,
    columns: int,
    wanted: Collection[int],
    *,
    to_the_end: bool,
) -> tuple[dict[int, Cells], Positions]:
    """Cells of the wanted columns of the tuples that begin `at`, and where the walk ended.

    A tuple is its number of columns and then, one after the other, their kind and what follows. It
    ends before its message does, at `end`.
    """
    steps = columns if to_the_end else max(wanted, default=-1) + 1
    if (octets.uint16(at) != columns).any():
        raise ProtocolViolation("a row has another number of columns than its table", byte_pos=0)
    try:
        found, at = _walk(octets, at + 2, steps, frozenset(wanted))
    except IndexError:
        found, at = {}, end + 1
    # Nothing leads back, so to look once is enough.
    if (at > end).any():
        raise ProtocolViolation("a row goes beyond the end of its message", byte_pos=0)
    return found, at


def _walk(
    octets: Octets, at: Positions, steps: int, keep: Collection[int]
) -> tuple[dict[int, Cells], Positions]:
    found: dict[int, Cells] = {}
    for index in range(steps):
        kind = octets.uint8(at)
        has_text = kind == TEXT
        length = octets.uint32(at + 1)
        start = at + 5
        if has_text.all():
            at = start + length
        elif (has_text | (kind == NULL) | (kind == UNCHANGED)).all():
            length = np.where(has_text, length, 0)
            at = np.where(has_text, start + length, at + 1)
        else:
            raise ProtocolViolation("a value is neither text, NULL nor unchanged", byte_pos=0)
        if index in keep:
            found[index] = Cells(kind, start, length)
    return found, at
