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
    """A column that must be known, and whether updates leave it as it is."""

    name: str
    # Where it is in the table as it was described; None: the table did not have it.
    place: int | None
    immutable: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """The images that count, with cells in which everything needed is known."""

    images: Images
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

    images = _filled(images, needed)
    left = on
    for reason, unknown in _unknowns(images, needed, table):
        # Both images of an update stand and fall together.
        gone = left & _with_partner(change, unknown)
        if count := int(np.count_nonzero(gone & once)):
            skipped[reason] += count
            left = left & ~gone
    rows = np.flatnonzero(left)
    signs = np.array([_RULES[kind][1] for kind in sorted(_RULES)], np.int64)
    changes = int(np.count_nonzero(left & once))
    return Counted(images, rows, signs[change[rows]], changes, skipped)


def told_once(counted: Counted, unfit: Mapping[str, Mask]) -> Counted:
    """With each change that has an image of `unfit` under the first reason for it, and not among
    those that count. The masks are of `rows`.

    An update's other image counts all the same: with it the row comes into the counts, or leaves
    them, as it does in the source when rows are counted there.
    """
    change = counted.images.change[counted.rows]
    left = np.isin(change, _ONCE)
    skipped = Counter(counted.skipped)
    for reason, mask in unfit.items():
        gone = left & _with_partner(change, mask)
        skipped[reason] += int(np.count_nonzero(gone))
        left &= ~gone
    return replace(counted, changes=int(np.count_nonzero(left)), skipped=skipped)


def _filled(images: Images, needed: Sequence[Needed]) -> Images:
    """Old images with the new one's value of what does not change."""
    cells, absent = dict(images.cells), dict(images.absent)
    for column in needed:
        if column.place is None or not column.immutable:
            continue
        missing = images.absent[column.place] & (images.change == PREIMAGE)
        if missing.any():
            old = np.flatnonzero(missing)
            cells[column.place] = cells[column.place].replaced(
                missing, cells[column.place], old + 1
            )
            absent[column.place] = images.absent[column.place] & ~missing
    return replace(images, cells=cells, absent=absent)


def _unknowns(images: Images, needed: Sequence[Needed], table: str) -> Iterator[tuple[str, Mask]]:
    """Reasons, and the images for which they hold."""
    old = {PREIMAGE: "update", DELETE: "delete"}
    for column in needed:
        if column.place is None:
            yield f"{table} had no column {column.name} then", np.ones(len(images.change), bool)
            continue
        for kind, word in old.items():
            yield (
                f"{word} of {table}: the old {column.name} {NOT_IN_WAL}",
                images.absent[column.place] & (images.change == kind),
            )
        yield (
            f"update of {table}: the unchanged {column.name} {NOT_IN_WAL}",
            images.unchanged[column.place],
        )


def _with_partner(change: npt.NDArray[np.uint8], mask: Mask) -> Mask:
    """The same, and both images of an update if it holds for one."""
    found = mask.copy()
    old = np.flatnonzero(change == PREIMAGE)
    either = mask[old] | mask[old + 1]
    found[old] = either
    found[old + 1] = either
    return found
