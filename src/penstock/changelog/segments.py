"""Reading segments: headers, frames, a walk from frame to frame. Knows no policy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.changelog.compression import decompress
from penstock.changelog.format import (
    FORMAT_VERSION,
    FRAME_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    ChangesMeta,
    FormatError,
    FrameHeader,
    Messages,
    SegmentHeader,
    VersionUnknown,
    unpack_messages,
    unpack_meta,
)
from penstock.changelog.head import read_head
from penstock.changelog.storage import Storage
from penstock.errors import LogCorrupt, LogError, LogFormatUnknown, LogRetired

FOLDER = "segments"
# Headers are read in blocks of this size: many small frames for one system call.
_BLOCK = 64 * 1024


def segment_name(number: int) -> str:
    return f"{FOLDER}/{number:010d}.seg"


def segment_numbers(storage: Storage) -> list[int]:
    """Of all segments there are, sorted."""
    stems = (name.removesuffix(".seg") for name in storage.names(FOLDER))
    return sorted(int(stem) for stem in stems if stem.isdigit())


@dataclass(frozen=True, slots=True)
class FrameAt:
    """A frame's header, and where it stands."""

    segment: int
    position: int
    header: FrameHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size


class SegmentReader:
    """One segment, read where it stands. `where` names the log in errors."""

    def __init__(
        self, storage: Storage, number: int, where: str, *, limit: int | None = None
    ) -> None:
        """`limit`: nothing at or behind this position is looked at."""
        self.number = number
        self._limit = limit
        self._storage = storage
        self._name = segment_name(number)
        self.where = f"{where}/{self._name}"
        self._block = b""
        self._block_at = 0

    def header(self) -> SegmentHeader:
        """Raises `LogCorrupt`, or `LogFormatUnknown` for a newer format."""
        data = self._read(0, SEGMENT_HEADER_SIZE)
        try:
            return SegmentHeader.unpack(data)
        except VersionUnknown as error:
            raise LogFormatUnknown(self.where, error.version, readable=FORMAT_VERSION) from None
        except FormatError as error:
            raise LogCorrupt(self.where, 0, str(error)) from None

    def size(self) -> int:
        try:
            return self._storage.size(self._name)
        except FileNotFoundError:
            raise self._gone() from None

    def frame_at(self, position: int) -> FrameAt:
        """The frame that starts here, by its header alone."""
        try:
            header = FrameHeader.unpack(self._cached(position, FRAME_HEADER_SIZE))
        except FormatError as error:
            raise LogCorrupt(self.where, position, str(error)) from None
        return FrameAt(self.number, position, header)

    def walk(self, start: int, end: int) -> Iterator[FrameAt]:
        """Every frame from `start` up to `end`, both boundaries of frames."""
        position = max(start, SEGMENT_HEADER_SIZE)
        while position < end:
            frame = self.frame_at(position)
            if frame.end > end:
                raise LogCorrupt(self.where, position, "a frame goes beyond the end of the log")
            yield frame
            position = frame.end

    def meta(self, frame: FrameAt) -> ChangesMeta:
        """What a frame of changes says about its messages."""
        header = frame.header
        data = self._part(frame, 0, header.meta_size, header.meta_checksum)
        try:
            return unpack_meta(data)
        except FormatError as error:
            raise LogCorrupt(self.where, frame.position, str(error)) from None

    def messages(self, frame: FrameAt) -> Messages:
        header = frame.header
        stored = self._part(frame, header.meta_size, header.data_size, header.data_checksum)
        try:
            raw = decompress(stored, header.compression, header.data_raw_size)
            return unpack_messages(raw, header.messages)
        except (FormatError, OSError, ValueError) as error:
            raise LogCorrupt(self.where, frame.position, str(error)) from None

    def _part(self, frame: FrameAt, skip: int, size: int, checksum: int) -> bytes:
        data = self._cached(frame.position + FRAME_HEADER_SIZE + skip, size)
        if len(data) < size:
            raise LogCorrupt(self.where, frame.position, "a frame is cut off")
        if zlib.crc32(data) != checksum:
            raise LogCorrupt(self.where, frame.position, "a frame does not match its checksum")
        return data

    def _cached(self, at: int, size: int) -> bytes:
        """From the block in memory if it is there, else read; a large range is read by itself."""
        if size > _BLOCK // 2:
            return self._read(at, size)
        if not self._block_at <= at <= at + size <= self._block_at + len(self._block):
            self._block = self._read(at, _BLOCK)
            self._block_at = at
        start = at - self._block_at
        return self._block[start : start + size]

    def _read(self, at: int, size: int) -> bytes:
        if self._limit is not None:
            # Behind it the writer may be at work: what is there now may not stay.
            size = max(0, min(size, self._limit - at))
        try:
            return self._storage.read(self._name, at, size)
        except FileNotFoundError:
            raise self._gone() from None

    def _gone(self) -> LogError:
        """Retention takes the oldest, and says so in the head first."""
        head = read_head(self._storage)
        if head is not None and head.first_segment <= self.number <= head.last_segment:
            return LogCorrupt(self.where, 0, "it is missing")
        return LogRetired(
            f"{self.where} is gone: retention has removed it",
            remedy="Seed the target again; a registered consumer keeps what it has not applied",
            segment=self.number,
        )
