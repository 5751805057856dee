"""Frames by their headers: one, or many at once. Pure: bytes in, arrays out.

A quiet day makes a frame for each transaction, so what is done once per frame is kept small: one
short loop goes from header to header, and all else is done to arrays.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.changelog.checksums import first_wrong
from penstock.changelog.format import (
    FRAME,
    FRAME_HEADER_SIZE,
    FRAME_MAGIC,
    PGOUTPUT,
    Compression,
    FormatError,
    FrameHeader,
    FrameKind,
    Records,
    records_at,
)

Integers = npt.NDArray[np.int64]

# Magic, and the two lengths that say where the next frame starts.
_LINK = struct.Struct("<4s12x2I")
# The bytes of a header that its checksum is about.
_CHECKED = np.dtype((np.void, FRAME_HEADER_SIZE - 8))
_IS_KIND = np.isin(np.arange(256), list(FrameKind))
_IS_COMPRESSION = np.isin(np.arange(256), list(Compression))


@dataclass(frozen=True, slots=True)
class FrameAt:
    """A frame's header, and where it stands."""

    segment: int
    position: int
    header: FrameHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size


@dataclass(frozen=True, slots=True)
class FrameHeaders:
    """The headers of some frames of one segment, in the order in which they stand there."""

    segment: int
    start: Integers
    # Records of `FRAME`.
    fields: Records
    # The bytes that were read for them, and where those begin: of small frames they are all.
    data: bytes
    data_at: int

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Integers:
        """Where each frame ends."""
        return self.start + _sizes(self.fields)

    @property
    def of_changes(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.fields["kind"] == FrameKind.CHANGES, bool)

    def some(self, which: slice | npt.NDArray[np.bool_]) -> FrameHeaders:
        return replace(self, start=self.start[which], fields=self.fields[which])

    def frame(self, index: int) -> FrameAt:
        header = FrameHeader.unpack(self.fields[index].tobytes())
        return FrameAt(self.segment, int(self.start[index]), header)


@dataclass(frozen=True, slots=True)
class Chain:
    """Frames that follow each other in some bytes, as far as their headers are there and whole."""

    start: Integers
    fields: Records
    # Where the next frame would start, and why it is none; no fault: its header is not there.
    end: int
    fault: FormatError | None


def chain(data: bytes) -> Chain:
    """Follow frames from header to header; the last of them may go beyond the bytes.

    The loop takes a seventh of a microsecond for a frame, where `FrameHeader.unpack` takes five.
    """
    starts: list[int] = []
    at, last = 0, len(data) - FRAME_HEADER_SIZE
    link, append = _LINK.unpack_from, starts.append
    while at <= last:
        magic, meta_size, data_size = link(data, at)
        if magic != FRAME_MAGIC:
            break
        append(at)
        at += FRAME_HEADER_SIZE + meta_size + data_size
    start = np.array(starts, np.int64)
    fields = records_at(data, start, FRAME)
    count = _whole(data, start, fields)
    if count < len(start):
        start, fields, at = start[:count], fields[:count], starts[count]
    return Chain(start, fields, at, _fault(data, at) if at <= last else None)


def _whole(data: bytes, start: Integers, fields: Records) -> int:
    """How many of these headers, from the first on, are what they should be."""
    checked = records_at(data, start + 8, _CHECKED)
    wrong = first_wrong(checked, fields["checksum"])
    known = (
        (fields["encoding"] == PGOUTPUT)
        & _IS_KIND[fields["kind"]]
        & _IS_COMPRESSION[fields["compression"]]
    )
    known[wrong:] &= wrong is None
    return len(start) if known.all() else int(np.argmin(known))


def _fault(data: bytes, at: int) -> FormatError | None:
    try:
        FrameHeader.unpack(data, at)
    except FormatError as error:
        return error
    return None


def _sizes(fields: Records) -> Integers:
    sizes = fields["meta_size"].astype(np.int64) + fields["data_size"]
    return np.asarray(sizes + FRAME_HEADER_SIZE, np.int64)
