"""Transactions whose commit has not come: their pieces, and what was rolled back of them. Pure."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.changelog.aborted import is_aborted
from penstock.changelog.building import Piece
from penstock.postgres.fragments import Abort

_NONE = np.empty(0, np.uint32)


@dataclass(slots=True)
class _Open:
    pieces: list[Piece] = field(default_factory=list)
    # Subtransactions; four bytes each, for there may be millions.
    aborted: array[int] = field(default_factory=lambda: array("I"))


@dataclass(frozen=True, slots=True)
class Finished:
    """What there is of a transaction when it commits."""

    pieces: list[Piece]
    # Subtransactions that were rolled back, sorted.
    aborted: npt.NDArray[np.uint32]
    # Definitions of tables that it brought, but for what was rolled back.
    definitions: list[tuple[bytes, ...]]


class Unfinished:
    """All open transactions of one connection, by xid."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        # Definitions that they brought, and which part of them did.
        self._described: dict[int, list[tuple[int, tuple[bytes, ...]]]] = {}

    def add(self, piece: Piece) -> None:
        """One more piece, or more in the last."""
        transaction = self._open.get(piece.xid)
        if transaction is None:
            transaction = self._open[piece.xid] = _Open()
        if not transaction.pieces or transaction.pieces[-1] is not piece:
            transaction.pieces.append(piece)

    def describe(self, xid: int, subxid: int, content: tuple[bytes, ...]) -> None:
        self._described.setdefault(xid, []).append((subxid, content))

    def abort(self, abort: Abort) -> None:
        if abort.xid == abort.subxid:
            self._open.pop(abort.xid, None)
            self._described.pop(abort.xid, None)
        elif abort.xid in self._open:
            self._open[abort.xid].aborted.append(abort.subxid)
            # The server describes a table again after each rollback: do not collect them all.
            described = self._described.get(abort.xid)
            while described and described[-1][0] == abort.subxid:
                described.pop()

    def finish(self, xid: int) -> Finished:
        """It commits, and is no longer open."""
        transaction = self._open.pop(xid, None) or _Open()
        described = self._described.pop(xid, [])
        if not transaction.aborted:
            return Finished(transaction.pieces, _NONE, [content for _, content in described])
        aborted = np.unique(np.array(transaction.aborted, np.uint32))
        by = np.fromiter((subxid for subxid, _ in described), np.uint32, len(described))
        kept = np.flatnonzero(~is_aborted(by, aborted)).tolist()
        return Finished(transaction.pieces, aborted, [described[index][1] for index in kept])

    def oldest_segment(self, current: int) -> int:
        """The oldest segment with a piece of one; 0: none. Unwritten ones go into `current`."""
        segments = (
            transaction.pieces[0].place.segment or current
            for transaction in self._open.values()
            if transaction.pieces
        )
        return min(segments, default=0)
