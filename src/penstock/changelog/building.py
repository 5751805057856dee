"""A frame while it is being filled: fragments and commits in, bytes out. Pure.

Where a frame will stand is known only when it is written, for definitions of its tables may have to
come first. So a `Piece`, one transaction's part of a frame, is an object that learns its place.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.changelog.aborted import is_aborted
from penstock.changelog.compression import compress_if_smaller
from penstock.changelog.format import (
    PACK_COMMIT,
    PACK_FRAGMENT,
    PACK_REFERENCE,
    PACK_RELATION,
    Compression,
    FragmentFlag,
    FrameHeader,
    FrameKind,
    Messages,
    pack_messages,
    pack_meta,
    unpack_messages,
)
from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.postgres.envelope import PAYLOAD_POS
from penstock.postgres.fragments import Commit, Fragment, touched

_ROW_KINDS = np.frombuffer(b"IUD", np.uint8)
# Up to so many messages are looked at one by one: for few of them NumPy costs more than it saves.
_FEW_MESSAGES = 64


@dataclass(slots=True)
class Place:
    """Where a frame stands, once it is written."""

    segment: int = 0
    position: int = 0


@dataclass(slots=True)
class Piece:
    """What one frame holds of one transaction."""

    place: Place
    index: int
    xid: int
    flags: FragmentFlag
    first: int
    messages: int = 0
    changes: int = 0
    size: int = 0
    # Its subtransactions and how many changes each made, once the frame is written: should one roll
    # back, nothing must be read again.
    subxids: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    subxid_counts: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))

    def count_subxids(self, xids: npt.NDArray[np.uint32]) -> None:
        subxids, counts = np.unique(xids[xids != self.xid], return_counts=True)
        self.subxids, self.subxid_counts = subxids, counts.astype(np.uint32)


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """A transaction as the log records its commit; `pieces` with the seq of their first change."""

    xid: int
    commit: Commit
    pieces: tuple[tuple[Piece, int], ...]
    aborted: npt.NDArray[np.uint32]
    changes: int

    @property
    def size(self) -> int:
        """In bytes; those of rolled-back changes beside others count too, for they are read."""
        return sum(piece.size for piece, _ in self.pieces)


@dataclass(frozen=True, slots=True)
class Definition:
    """A table's description from message `from_message` of the frame on."""

    oid: int
    from_message: int
    content: tuple[bytes, ...]


@dataclass(slots=True)
class FrameBuilder:
    """Collects until it is full or time is up."""

    place: Place = field(default_factory=Place)
    size: int = 0
    _messages: list[memoryview] = field(default_factory=list)
    _pieces: list[Piece] = field(default_factory=list)
    _commits: list[CommitEntry] = field(default_factory=list)
    _definitions: list[Definition] = field(default_factory=list)
    _raw: bytes | None = None

    @property
    def empty(self) -> bool:
        return not self._messages and not self._commits

    @property
    def last_commit_lsn(self) -> Lsn | None:
        return self._commits[-1].commit.lsn if self._commits else None

    def add(self, fragment: Fragment) -> Piece:
        """Take a fragment; one that goes on where the last one ended becomes a part of it."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.xid == fragment.xid and not last.flags & FragmentFlag.HAS_END:
            piece = last
        else:
            piece = Piece(
                self.place,
                len(self._pieces),
                fragment.xid,
                FragmentFlag.STREAMED if fragment.streamed else FragmentFlag(0),
                len(self._messages),
            )
            self._pieces.append(piece)
        if fragment.has_begin:
            piece.flags |= FragmentFlag.HAS_BEGIN
        if fragment.commit is not None:
            piece.flags |= FragmentFlag.HAS_END
        piece.messages += len(fragment.messages)
        piece.changes += fragment.changes
        size = sum(map(len, fragment.messages))
        piece.size += size
        self._messages += fragment.messages
        self.size += size
        return piece

    def commit(self, entry: CommitEntry) -> None:
        self._commits.append(entry)
        self.size += PACK_COMMIT.size

    def define(self, oid: int, content: tuple[bytes, ...]) -> None:
        """From the next message on, changes of this table are described so."""
        self._definitions.append(Definition(oid, len(self._messages), content))

    def xids(self, piece: Piece) -> npt.NDArray[np.uint32]:
        """Of the changes in a streamed piece of this very frame, before it is written."""
        part = self._messages[piece.first : piece.first + piece.messages]
        at = PAYLOAD_POS + 1
        return np.fromiter(
            (int.from_bytes(message[at : at + 4], "big") for message in part), np.uint32, len(part)
        )

    def surviving(self, piece: Piece, aborted: npt.NDArray[np.uint32]) -> int:
        """How many changes of a piece, of this frame or of one before, nobody rolled back."""
        if not len(aborted):
            return piece.changes
        if piece.place is self.place:
            piece.count_subxids(self.xids(piece))
        if not len(piece.subxids):
            return piece.changes
        return piece.changes - int(piece.subxid_counts[is_aborted(piece.subxids, aborted)].sum())

    def definitions(self, in_force: dict[int, tuple[bytes, ...]]) -> list[Definition]:
        """Those that the frame's changes use, oldest first; `in_force` held when it began."""
        used = self._touched()
        if unknown := used - in_force.keys() - {definition.oid for definition in self._definitions}:
            raise ProtocolViolation(
                f"a change of relation {min(unknown)}, which was not described", byte_pos=1
            )
        before = [Definition(oid, 0, in_force[oid]) for oid in sorted(used) if oid in in_force]
        return before + [definition for definition in self._definitions if definition.oid in used]

    def _touched(self) -> set[int]:
        if len(self._messages) <= _FEW_MESSAGES:
            return {
                oid
                for piece in self._pieces
                for message in self._messages[piece.first : piece.first + piece.messages]
                for oid in touched(message[PAYLOAD_POS:], bool(piece.flags & FragmentFlag.STREAMED))
            }
        messages = self._packed()
        kinds = messages.kinds
        # In streamed pieces an xid stands between the kind and the oid.
        skip = np.ones(len(messages), np.int64)
        for piece in self._pieces:
            if piece.flags & FragmentFlag.STREAMED:
                skip[piece.first : piece.first + piece.messages] += 4
        rows = np.flatnonzero(np.isin(kinds, _ROW_KINDS))
        found = set(np.unique(messages.uint32(rows, skip[rows])).tolist())
        for index in np.flatnonzero(~np.isin(kinds, _ROW_KINDS)).tolist():
            found.update(touched(messages[index], bool(skip[index] > 1)))
        return found

    def _packed_bytes(self) -> bytes:
        """The messages as they will stand in the frame; made once, when nothing more is added."""
        if self._raw is None:
            self._raw = pack_messages([message[PAYLOAD_POS:] for message in self._messages])
        return self._raw

    def _packed(self) -> Messages:
        return unpack_messages(self._packed_bytes(), len(self._messages))

    def _note_subxids(self) -> None:
        streamed = [piece for piece in self._pieces if piece.flags & FragmentFlag.STREAMED]
        if not streamed:
            return
        messages = self._packed()
        for piece in streamed:
            index = np.arange(piece.first, piece.first + piece.messages)
            piece.count_subxids(messages.uint32(index, 1))

    def oldest_reference(self, current: int) -> int:
        """The oldest segment that its commits refer to; 0: none. Itself it goes into `current`."""
        pieces = (piece for entry in self._commits for piece, _ in entry.pieces)
        return min((piece.place.segment or current for piece in pieces), default=0)

    def build(
        self,
        places: list[tuple[Definition, int]],
        *,
        epoch: int,
        complete_lsn: Lsn,
        synced_pos: int,
        compression: Compression,
    ) -> bytes:
        """The frame; `places` says where in the segment each definition stands."""
        meta = self._meta(places)
        self._note_subxids()
        raw = self._packed_bytes()
        data, compression = compress_if_smaller(raw, compression)
        header = FrameHeader(
            kind=FrameKind.CHANGES,
            compression=compression,
            epoch=epoch,
            meta_size=len(meta),
            data_size=len(data),
            data_raw_size=len(raw),
            meta_checksum=zlib.crc32(meta),
            data_checksum=zlib.crc32(data),
            complete_lsn=complete_lsn,
            synced_pos=synced_pos,
            messages=len(self._messages),
            commits=len(self._commits),
            changes=sum(piece.changes for piece in self._pieces),
            committed_changes=sum(entry.changes for entry in self._commits),
            committed_bytes=sum(entry.size for entry in self._commits),
        )
        return b"".join((header.pack(), meta, data))

    def _meta(self, places: list[tuple[Definition, int]]) -> bytes:
        fragments = b"".join(
            PACK_FRAGMENT.pack(piece.xid, piece.flags, piece.first, piece.messages, piece.changes)
            for piece in self._pieces
        )
        relations = b"".join(
            PACK_RELATION.pack(definition.oid, definition.from_message, position)
            for definition, position in places
        )
        commits, references, aborted = bytearray(), bytearray(), bytearray()
        for entry in self._commits:
            commits += PACK_COMMIT.pack(
                entry.commit.lsn,
                entry.commit.time_us,
                entry.xid,
                len(references) // PACK_REFERENCE.size,
                len(entry.pieces),
                len(aborted) // 4,
                len(entry.aborted),
                entry.changes,
                entry.size,
            )
            for piece, first_seq in entry.pieces:
                references += PACK_REFERENCE.pack(
                    piece.place.segment, piece.place.position, piece.index, first_seq
                )
            aborted += entry.aborted.astype("<u4").tobytes()
        return pack_meta((fragments, relations, bytes(commits), bytes(references), bytes(aborted)))


def relation_frame(
    messages: Sequence[bytes], *, epoch: int, complete_lsn: Lsn, synced_pos: int
) -> bytes:
    """A definition, which must stand in the segment before the frames that use it."""
    content = pack_messages(messages)
    header = FrameHeader(
        kind=FrameKind.RELATION,
        compression=Compression.NONE,
        epoch=epoch,
        meta_size=0,
        data_size=len(content),
        data_raw_size=len(content),
        meta_checksum=zlib.crc32(b""),
        data_checksum=zlib.crc32(content),
        complete_lsn=complete_lsn,
        synced_pos=synced_pos,
        messages=len(messages),
        commits=0,
        changes=0,
        committed_changes=0,
        committed_bytes=0,
    )
    return header.pack() + content
