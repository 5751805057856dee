"""The bytes of the change log, as `docs/log-format.md` draws them. Pure: bytes in, values out.

Readers get NumPy views into the bytes they read: nothing is copied per message.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.lsn import Lsn

FORMAT_VERSION = 1

Records: TypeAlias = npt.NDArray[np.void]


class FormatError(ValueError):
    """These bytes are not what they should be; the caller knows the file and the position."""


class VersionUnknown(FormatError):
    """These bytes are of a newer format, which says nothing about whether they are whole."""

    def __init__(self, version: int) -> None:
        super().__init__(f"it has format {version}, and this program reads {FORMAT_VERSION}")
        self.version = version


# --- segment header -----------------------------------------------------------------------------

_SEGMENT = struct.Struct("<8sII16sQQqQ")
SEGMENT_HEADER_SIZE = _SEGMENT.size
_SEGMENT_MAGIC = b"PENSTOCK"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    log_id: bytes
    number: int
    base_lsn: Lsn
    created_us: int
    # The oldest segment that a commit of the segment before this one refers to; 0: none.
    previous_refers_to: int

    def pack(self) -> bytes:
        def packed(checksum: int) -> bytes:
            return _SEGMENT.pack(
                _SEGMENT_MAGIC,
                FORMAT_VERSION,
                checksum,
                self.log_id,
                self.number,
                self.base_lsn,
                self.created_us,
                self.previous_refers_to,
            )

        return packed(zlib.crc32(packed(0)))

    @classmethod
    def unpack(cls, data: bytes) -> SegmentHeader:
        if len(data) < _SEGMENT.size:
            raise FormatError("the segment's header is cut off")
        magic, version, _, log_id, number, base, created, refers = _SEGMENT.unpack_from(data)
        if magic != _SEGMENT_MAGIC:
            raise FormatError("it does not start as a segment does")
        if version > FORMAT_VERSION:
            raise VersionUnknown(version)
        header = cls(log_id, number, Lsn(base), created, refers)
        if header.pack()[: _SEGMENT.size] != data[: _SEGMENT.size]:
            raise FormatError("the segment's header does not match its checksum")
        return header


# --- frame header -------------------------------------------------------------------------------


class FrameKind(IntEnum):
    CHANGES = 1
    RELATION = 2


class Compression(IntEnum):
    NONE = 0
    LZ4 = 1
    ZSTD = 2


PGOUTPUT = 1

_FRAME = struct.Struct("<4sI4B5I2Q4I2Q")
_FRAME_BODY = struct.Struct("<4B5I2Q4I2Q")
FRAME_HEADER_SIZE = _FRAME.size
FRAME_MAGIC = b"PFRM"


@dataclass(frozen=True, slots=True)
class FrameHeader:
    kind: FrameKind
    compression: Compression
    epoch: int
    meta_size: int
    data_size: int
    data_raw_size: int
    meta_checksum: int
    data_checksum: int
    complete_lsn: Lsn
    # Every byte of the segment before this position was on disk when the frame was written.
    synced_pos: int
    messages: int
    commits: int
    changes: int
    # Of the transactions that commit here, wherever their fragments are: what reading them takes.
    committed_changes: int
    committed_bytes: int

    @property
    def size(self) -> int:
        """Of the whole frame."""
        return FRAME_HEADER_SIZE + self.meta_size + self.data_size

    def pack(self) -> bytes:
        body = _FRAME_BODY.pack(
            *(self.kind, PGOUTPUT, self.compression, 0),
            *(self.epoch, self.meta_size, self.data_size, self.data_raw_size, self.meta_checksum),
            *(self.complete_lsn, self.synced_pos),
            *(self.messages, self.commits, self.changes, self.data_checksum),
            *(self.committed_changes, self.committed_bytes),
        )
        return FRAME_MAGIC + struct.pack("<I", zlib.crc32(body)) + body

    @classmethod
    def unpack(cls, data: bytes | memoryview, at: int = 0) -> FrameHeader:
        if len(data) - at < FRAME_HEADER_SIZE:
            raise FormatError("a frame's header is cut off")
        magic, checksum, *fields = _FRAME.unpack_from(data, at)
        if magic != FRAME_MAGIC:
            raise FormatError("a frame does not start here")
        if zlib.crc32(data[at + 8 : at + FRAME_HEADER_SIZE]) != checksum:
            raise FormatError("a frame's header does not match its checksum")
        kind, encoding, compression, _, epoch, meta, size, raw, meta_crc, *rest = fields
        complete_lsn, synced_pos, messages, commits, changes, data_crc, *committed = rest
        if encoding != PGOUTPUT:
            raise FormatError(f"a frame has the unknown encoding {encoding}")
        try:
            return cls(
                FrameKind(kind),
                Compression(compression),
                *(epoch, meta, size, raw, meta_crc, data_crc),
                *(Lsn(complete_lsn), synced_pos, messages, commits, changes),
                *committed,
            )
        except ValueError as error:
            raise FormatError(f"a frame has an unknown kind or compression: {error}") from None


# --- many frame headers at once -------------------------------------------------------------------


def _dtype(**fields: str) -> np.dtype[np.void]:
    return np.dtype(list(fields.items()))


FRAME = _dtype(
    magic="S4",
    checksum="<u4",
    kind="u1",
    encoding="u1",
    compression="u1",
    _pad="u1",
    epoch="<u4",
    meta_size="<u4",
    data_size="<u4",
    data_raw_size="<u4",
    meta_checksum="<u4",
    complete_lsn="<u8",
    synced_pos="<u8",
    messages="<u4",
    commits="<u4",
    changes="<u4",
    data_checksum="<u4",
    committed_changes="<u8",
    committed_bytes="<u8",
)


def records_at(
    data: bytes | memoryview, positions: npt.NDArray[np.int64], kind: np.dtype[Any]
) -> npt.NDArray[Any]:
    """The records that stand at these positions, copied; all of them lie within the data."""
    if not len(positions):
        return np.empty(0, kind)
    # As plain bytes first: fields that are not aligned would be copied one by one.
    plain = np.dtype((np.void, kind.itemsize))
    everywhere: npt.NDArray[np.void] = np.ndarray(
        (len(data) - kind.itemsize + 1,), plain, data, strides=(1,)
    )
    return everywhere[positions].view(kind)


# --- what a frame of changes says about its messages ----------------------------------------------


class FragmentFlag(IntFlag):
    HAS_BEGIN = 1
    STREAMED = 2
    HAS_END = 4


FRAGMENT = _dtype(xid="<u4", flags="<u4", first="<u4", messages="<u4", changes="<u4", _pad="<u4")
RELATION = _dtype(oid="<u4", from_message="<u4", position="<u8")
COMMIT = _dtype(
    lsn="<u8",
    time_us="<i8",
    xid="<u4",
    first_reference="<u4",
    references="<u4",
    first_aborted="<u4",
    aborted="<u4",
    _pad="<u4",
    changes="<u8",
    size="<u8",
)
REFERENCE = _dtype(segment="<u8", position="<u8", fragment="<u4", _pad="<u4", first_seq="<u8")
ABORTED = np.dtype("<u4")

META_SECTIONS = (FRAGMENT, RELATION, COMMIT, REFERENCE, ABORTED)
_COUNTS = struct.Struct("<6I")
META_COUNTS = _dtype(counts="<6u4")


@dataclass(frozen=True, slots=True)
class ChangesMeta:
    """The arrays of one frame, in the order in which they are stored."""

    fragments: Records
    relations: Records
    commits: Records
    references: Records
    aborted: npt.NDArray[np.uint32]


def pack_meta(sections: tuple[bytes, bytes, bytes, bytes, bytes]) -> bytes:
    """Entries of each array, packed one after the other, with their counts in front."""
    counts = [
        len(section) // kind.itemsize for section, kind in zip(sections, META_SECTIONS, strict=True)
    ]
    padding = bytes(-len(sections[-1]) % 8)
    return b"".join((_COUNTS.pack(*counts, 0), *sections, padding))


def unpack_meta(data: bytes | memoryview) -> ChangesMeta:
    if len(data) < _COUNTS.size:
        raise FormatError("a frame's description is cut off")
    counts = _COUNTS.unpack_from(data)
    at = _COUNTS.size
    arrays = []
    for count, kind in zip(counts, META_SECTIONS, strict=False):
        if at + count * kind.itemsize > len(data):
            raise FormatError("a frame's description is cut off")
        arrays.append(np.frombuffer(data, kind, count, at))
        at += count * kind.itemsize
    return ChangesMeta(*arrays)


# The layouts of single entries, for those who write them.
PACK_FRAGMENT = struct.Struct("<5I4x")
PACK_RELATION = struct.Struct("<2IQ")
PACK_COMMIT = struct.Struct("<Qq5I4x2Q")
PACK_REFERENCE = struct.Struct("<2QI4xQ")


# --- messages -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Messages:
    """Many messages in one buffer: message i is `buffer[start[i]:end[i]]`."""

    buffer: memoryview
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.buffer[self.start[index] : self.end[index]])

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """The first byte of each message."""
        return np.frombuffer(self.buffer, np.uint8)[self.start]

    def uint32(
        self, index: npt.NDArray[np.int64], skip: int | npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint32]:
        """The big-endian number that stands `skip` bytes behind the start of each message."""
        everywhere: npt.NDArray[np.uint32] = np.ndarray(
            (max(len(self.buffer) - 3, 0),), ">u4", self.buffer, strides=(1,)
        )
        return np.asarray(everywhere[self.start[index] + skip], np.uint32)


def pack_messages(messages: Sequence[bytes | memoryview]) -> bytes:
    lengths = struct.pack(f"<{len(messages)}I", *map(len, messages))
    return b"".join((lengths, *messages))


def unpack_messages(data: bytes | memoryview, count: int) -> Messages:
    if len(data) < 4 * count:
        raise FormatError("a frame's messages are cut off")
    offsets = np.empty(count + 1, np.int64)
    offsets[0] = 0
    np.cumsum(np.frombuffer(data, "<u4", count), out=offsets[1:])
    buffer = memoryview(data)[4 * count :]
    if offsets[-1] != len(buffer):
        raise FormatError("the lengths of a frame's messages do not add up")
    return Messages(buffer, offsets[:-1], offsets[1:])


# --- head -----------------------------------------------------------------------------------------

_HEAD = struct.Struct("<4sIII7Q")
_HEAD_MAGIC = b"PHED"


@dataclass(frozen=True, slots=True)
class Head:
    """How far the log may be read. `counter` grows with every write."""

    epoch: int
    first_segment: int
    last_segment: int
    position: int
    complete_lsn: Lsn
    # The oldest segment that holds a fragment of a transaction that is open now; 0: none.
    open_segment: int
    # The oldest segment that a commit in the last segment refers to; 0: none.
    refers_to: int
    counter: int

    def pack(self) -> bytes:
        def packed(checksum: int) -> bytes:
            return _HEAD.pack(
                *(_HEAD_MAGIC, checksum, self.epoch, 0),
                *(self.first_segment, self.last_segment, self.position),
                *(self.complete_lsn, self.open_segment, self.refers_to, self.counter),
            )

        return packed(zlib.crc32(packed(0)))

    @classmethod
    def unpack(cls, data: bytes) -> Head:
        if len(data) < _HEAD.size:
            raise FormatError("the head is cut off")
        magic, _, epoch, _, first, last, position, lsn, *rest = _HEAD.unpack_from(data)
        head = cls(epoch, first, last, position, Lsn(lsn), *rest)
        if magic != _HEAD_MAGIC or head.pack() != data[: _HEAD.size]:
            raise FormatError("the head does not match its checksum")
        return head
