"""Which images of rows count, and for how much: rules and what is known in, signs out. Pure.

A row appears with +1 and goes with -1. Where a value that is needed was not in the WAL, the whole
change is left out and counted under a reason, for half of it would be a wrong count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.decode.columns import Mask
from penstock.decode.images import DELETE, INSERT, POSTIMAGE, PREIMAGE, Images
from penstock.decode.octets import Positions
from penstock.decode.tuples import NULL, Cells

# What each kind of image needs to be switched on, and its sign.
_RULES = {
    INSERT: ("insert", 1),
    PREIMAGE: ("update", -1),
    POSTIMAGE: ("update", 1),
    DELETE: ("delete", -1),
}
# How reasons end: where a change was not to count, and where the replica identity leaves out what
# it needs.
RULE_OFF = "the rule is off"
NOT_IN_WAL = "is not in the WAL"
# Images by which a change is counted once.
_ONCE = (INSERT, POSTIMAGE, DELETE)


@dataclass(frozen=True, slots=True)
class Needed:
    """A value that must be known, and whether updates leave it as it is."""

    name: str
    # The columns that may hold it, in the table as it was described: the first that is not NULL
    # counts. Empty: the table had none of them.
    places: tuple[int, ...]
    immutable: bool


@dataclass(frozen=True, slots=True)
class Values:
    """A needed value in all images: where it stands, and where it is not known."""

    cells: Cells
    # The column that holds it in each image.
    place: Positions
    absent: Mask
    unchanged: Mask


@dataclass(frozen=True, slots=True)
class Counted:
    """The images that count, with values in which everything needed is known."""

    change: npt.NDArray[np.uint8]
    # In the order of what is needed; None: the table had no such column, and no image counts.
    values: Sequence[Values | None]
    rows: Positions
    sign: npt.NDArray[np.int64]
    # How many changes counted.
    changes: int
    # How many changes did not, by reason.
    skipped: Counter[str]


def classify(
    images: Images, needed: Sequence[Needed], rules: frozenset[str], table: str
) -> Counted:
    """`images` are of one table, an update's old one directly before its new one."""
    change = images.change
    once = np.isin(change, _ONCE)
    skipped: Counter[str] = Counter()
    on = np.zeros(len(change), bool)
    for kind, (rule, _) in _RULES.items():
        these = change == kind
        if rule in rules:
            on |= these
        elif kind in _ONCE and (count := int(np.count_nonzero(these))):
            skipped[f"{rule} of {table}: {RULE_OFF}"] += count

    values = [_values(images, each) if each.places else None for each in needed]
    left = on
    for reason, unknown in _unknowns(change, needed, values, table):
        # Both images of an update stand and fall together.
        gone = left & _with_partner(change, unknown)
        if count := int(np.count_nonzero(gone & once)):
            skipped[reason] += count
            left = left & ~gone
    rows = np.flatnonzero(left)
    signs = np.array([_RULES[kind][1] for kind in sorted(_RULES)], np.int64)
    changes = int(np.count_nonzero(left & once))
    return Counted(change, values, rows, signs[change[rows]], changes, skipped)


def told_once(counted: Counted, unfit: Mapping[str, Mask]) -> Counted:
    """With each change that has an image of `unfit` under the first reason for it, and not among
    those that count. The masks are of `rows`.

    An update's other image counts all the same: with it the row comes into the counts, or leaves
    them, as it does in the source when rows are counted there.
    """
    change = counted.change[counted.rows]
    left = np.isin(change, _ONCE)
    skipped = Counter(counted.skipped)
    for reason, mask in unfit.items():
        gone = left & _with_partner(change, mask)
        skipped[reason] += int(np.count_nonzero(gone))
        left &= ~gone
    return replace(counted, changes=int(np.count_nonzero(left)), skipped=skipped)


def _values(images: Images, needed: Needed) -> Values:
    """Take the first column that is not NULL. An old value that the WAL does not hold is the new
    image's, if no update changes it.
    """
    first, *others = needed.places
    cells, absent, unchanged = images.cells[first], images.absent[first], images.unchanged[first]
    place = np.full(len(images.change), first)
    for other in others:
        # What is not known may be a value, so that no later column is asked.
        is_null = (cells.kind == NULL) & ~absent & ~unchanged
        cells = cells.replaced(is_null, images.cells[other], np.flatnonzero(is_null))
        absent = np.where(is_null, images.absent[other], absent)
        unchanged = np.where(is_null, images.unchanged[other], unchanged)
        # Where all are NULL it is the last, which makes no difference.
        place = np.where(is_null, other, place)
    missing = absent & (images.change == PREIMAGE)
    if needed.immutable and missing.any():
        new = np.flatnonzero(missing) + 1
        cells = cells.replaced(missing, cells, new)
        absent = absent & ~missing
        place[missing] = place[new]
    return Values(cells, place, absent, unchanged)


def _unknowns(
    change: npt.NDArray[np.uint8],
    needed: Sequence[Needed],
    values: Sequence[Values | None],
    table: str,
) -> Iterator[tuple[str, Mask]]:
    """Reasons, and the images for which they hold."""
    old = {PREIMAGE: "update", DELETE: "delete"}
    for each, found in zip(needed, values, strict=True):
        if found is None:
            yield f"{table} had no column {each.name} then", np.ones(len(change), bool)
            continue
        for kind, word in old.items():
            yield (
                f"{word} of {table}: the old {each.name} {NOT_IN_WAL}",
                found.absent & (change == kind),
            )
        yield f"update of {table}: the unchanged {each.name} {NOT_IN_WAL}", found.unchanged


def _with_partner(change: npt.NDArray[np.uint8], mask: Mask) -> Mask:
    """The same, and both images of an update if it holds for one."""
    found = mask.copy()
    old = np.flatnonzero(change == PREIMAGE)
    either = mask[old] | mask[old + 1]
    found[old] = either
    found[old + 1] = either
    return found
