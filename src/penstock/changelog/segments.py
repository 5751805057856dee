"""Reading segments: headers, frames, a walk from frame to frame. Knows no policy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

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
from penstock.changelog.frames import FrameAt, FrameHeaders, chain
from penstock.changelog.head import read_head
from penstock.changelog.storage import Storage
from penstock.errors import LogCorrupt, LogError, LogFormatUnknown, LogRetired

FOLDER = "segments"
# Headers are read in blocks of this size: many small frames for one system call. Blocks are larger
# where frames are so small that all of their bytes are read anyhow.
_BLOCK = 64 * 1024
_LARGE_BLOCK = 2**20


def segment_name(number: int) -> str:
    return f"{FOLDER}/{number:010d}.seg"


def segment_numbers(storage: Storage) -> list[int]:
    """Of all segments there are, sorted."""
    stems = (name.removesuffix(".seg") for name in storage.names(FOLDER))
    return sorted(int(stem) for stem in stems if stem.isdigit())


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

    def walk(self, start: int, end: int) -> Iterator[FrameHeaders]:
        """Every frame from `start` up to `end`, both boundaries of frames, many at once.

        Those before damage are handed out before it is raised.
        """
        position = max(start, SEGMENT_HEADER_SIZE)
        size = _BLOCK
        while position < end:
            data = self._read(position, min(size, end - position))
            found = chain(data)
            frames = FrameHeaders(self.number, found.start + position, found.fields, data, position)
            following, beyond = position + found.end, position + found.end > end
            if beyond or (found.end > len(data) and len(frames) > 1):
                # Of the last one not all was read: it is looked at again, with those behind it.
                following = int(frames.start[-1])
                frames = frames.some(slice(-1))
            if len(frames):
                yield frames
            if found.fault is not None:
                raise LogCorrupt(self.where, following, str(found.fault))
            if beyond:
                raise LogCorrupt(self.where, following, "a frame goes beyond the end of the log")
            if not len(frames):
                raise LogCorrupt(self.where, position, "a frame's header is cut off")
            position = following
            size = _LARGE_BLOCK if len(frames) * _BLOCK >= 2 * len(data) else _BLOCK

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`."""
        data = self._read(start, end - start)
        if len(data) < end - start:
            raise LogCorrupt(self.where, start, "a frame is cut off")
        return data

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
