"""From messages about one table to images of its rows: before and after, and what is known. Pure.

An insert has one image, a delete has one, an update has two. What the WAL does not hold is told
apart from NULL: a value is *absent* from an old image, or *unchanged* in a new one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.changelog.runs import Run
from penstock.decode.columns import Mask
from penstock.decode.octets import Octets, Positions
from penstock.decode.tuples import NULL, UNCHANGED, Cells, walk
from penstock.errors import ProtocolViolation
from penstock.postgres.messages import Relation

# What an image shows; the last is for a truncate, which has no rows.
CHANGES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
INSERT, PREIMAGE, POSTIMAGE, DELETE, TRUNCATE = range(len(CHANGES))

_UPDATE, _DELETE, _KEY, _NEW = (ord(letter) for letter in "UDKN")


@dataclass(frozen=True, slots=True)
class Images:
    """One entry for each image, in the order of the messages, an update's old one first."""

    # Which message of the run it is of.
    message: Positions
    change: npt.NDArray[np.uint8]
    # By column; and where a column's value is not known.
    cells: dict[int, Cells]
    absent: dict[int, Mask]
    unchanged: dict[int, Mask]


@dataclass(frozen=True, slots=True)
class _Messages:
    """Where the tuples of each message begin. Without an old one, `old_at` is that of the new."""

    is_update: Mask
    has_old: Mask
    old_is_key: Mask
    old_at: Positions
    new_at: Positions
    # The wanted columns of updates' old tuples, and which row of them is whose.
    old_cells: dict[int, Cells]
    old_row: Positions


def images(
    octets: Octets,
    run: Run,
    index: Positions,
    relation: Relation,
    wanted: Collection[int],
    *,
    preimages: bool,
) -> Images:
    """Of the messages `index` of a run, all of them changes of rows under one description."""
    messages = _messages(octets, run, index, relation, wanted)
    kind = octets.uint8(run.start[index])
    twice = messages.is_update & preimages
    whose = np.repeat(np.arange(len(index)), 1 + twice)
    is_first = np.append(True, whose[1:] != whose[:-1])
    is_pre = twice[whose] & is_first
    is_old = is_pre | (kind == _DELETE)[whose]
    change = np.select(
        [is_pre, messages.is_update[whose], is_old], [PREIMAGE, POSTIMAGE, DELETE], INSERT
    ).astype(np.uint8)
    at = np.where(is_old, messages.old_at[whose], messages.new_at[whose])
    end = run.end[index]
    cells, _ = walk(octets, at, end[whose], len(relation.columns), wanted, to_the_end=False)
    # Without an old tuple the identity has not changed: it is that of the new one.
    identity_only = is_old & (messages.old_is_key | ~messages.has_old)[whose]
    # Of the whole row this cannot be said: the leaf of a partitioned table has another identity.
    unknown = is_pre & ~messages.has_old[whose] & (relation.replica_identity == "f")
    # An identity has no NULL: in a key it stands for what such a leaf's own leaves out.
    is_key = is_old & messages.old_is_key[whose]
    absent, unchanged = {}, {}
    for column in wanted:
        in_identity = relation.columns[column].in_identity
        missing = unknown | (identity_only & (not in_identity))
        missing |= is_key & (cells[column].kind == NULL)
        not_sent = (cells[column].kind == UNCHANGED) & ~missing
        if not_sent.any():
            known = not_sent & (change == POSTIMAGE) & messages.has_old[whose]
            known &= ~messages.old_is_key[whose] | in_identity
            rows = messages.old_row[whose[known]]
            if len(rows):
                old = messages.old_cells[column]
                told = ~messages.old_is_key[whose[known]] | (old.kind[rows] != NULL)
                known[known] = told
                cells[column] = cells[column].replaced(known, old, rows[told])
            not_sent = (cells[column].kind == UNCHANGED) & ~missing
        absent[column] = missing | (not_sent & is_old)
        unchanged[column] = not_sent & ~is_old
    return Images(index[whose], change, cells, absent, unchanged)


def _messages(
    octets: Octets, run: Run, index: Positions, relation: Relation, wanted: Collection[int]
) -> _Messages:
    """Behind a message's kind and oid stands a letter: which tuple follows."""
    start = run.start[index]
    is_update = octets.uint8(start) == _UPDATE
    at = start + 5 + 4 * run.streamed[index]
    letter = octets.uint8(at)
    has_old = letter != _NEW
    old_at = at + 1
    new_at = old_at.copy()
    old_cells: dict[int, Cells] = {}
    old_row = np.zeros(len(index), np.int64)
    both = np.flatnonzero(is_update & has_old)
    if len(both):
        limit = run.end[index[both]]
        old_cells, old_end = walk(
            octets, old_at[both], limit, len(relation.columns), wanted, to_the_end=True
        )
        if (octets.uint8(old_end) != _NEW).any():
            raise ProtocolViolation("an update has no new row", byte_pos=0, kind="U")
        new_at[both] = old_end + 1
        old_row[both] = np.arange(len(both))
    return _Messages(is_update, has_old, letter == _KEY, old_at, new_at, old_cells, old_row)
