"""In which columns many rows that stand near each other are equal. Pure.

By these the server puts rows together before it packs the others, and sends one value for all rows
of a group: less work for it, and for who reads it (`postgres/packing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock.pipelines.numbering import Numbered, combined, numbered

# Of fewer rows nothing can be said of others.
_ENOUGH_TO_TELL = 1000
# As many rows a group must have, in the mean. With four, the server takes up to twice as long as to
# pack each row by itself, and with sixteen less, however many columns are shared.
_ROWS_IN_GROUP = 16
# Somewhat fewer are no reason to look at every second range anew.
_STILL_IN_GROUP = 8


def shared_columns(columns: Mapping[int, pa.Array]) -> frozenset[int] | None:
    """Which of them, as rows that were read have them. None: these cannot tell.

    As many as possible: those with the fewest values come first.
    """
    rows = max(map(len, columns.values()), default=0)
    if rows < _ENOUGH_TO_TELL:
        return None
    found = {place: numbered({str(place): values}) for place, values in columns.items()}
    chosen: set[int] = set()
    so_far: Numbered | None = None
    for place in sorted(found, key=lambda each: len(found[each].meanings)):
        together = combined(so_far, found[place]) if so_far else found[place]
        if is_worth_it(rows, len(together.meanings)):
            chosen.add(place)
            so_far = together
    return frozenset(chosen)


def is_worth_it(rows: int, groups: int) -> bool:
    return groups * _ROWS_IN_GROUP <= rows


def is_still_worth_it(rows: int, groups: int) -> bool:
    """Of rows that came in groups which were so for rows before them."""
    return groups * _STILL_IN_GROUP <= rows
