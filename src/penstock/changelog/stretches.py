"""Small frames of changes that stand near each other, read at once and as if they were one frame.

What a frame costs by itself, a few calls of NumPy and a read, is the cost of a whole stretch here;
for each frame only its checksums are left. A large frame is a stretch of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.changelog.checksums import first_wrong
from penstock.changelog.compression import decompress
from penstock.changelog.format import (
    FRAME,
    FRAME_HEADER_SIZE,
    META_COUNTS,
    META_SECTIONS,
    ChangesMeta,
    Compression,
    Messages,
    records_at,
)
from penstock.changelog.frames import FrameHeaders, Integers
from penstock.changelog.segments import SegmentReader
from penstock.errors import LogCorrupt

# So much is read at once, with no more than a little between two frames that nobody asked for.
_STRETCH_BYTES = 2**21
_GAP_BYTES = 2**12
_LENGTH = np.dtype([("bytes", "<u4")])
_ENTRY_SIZES = np.array([kind.itemsize for kind in META_SECTIONS])
_DAMAGED = "a frame does not match its checksum"
_DESCRIPTION_CUT_OFF = "a frame's description is cut off"


@dataclass(frozen=True, slots=True)
class StretchMeta:
    """What the frames of a stretch say, with numbers that count from the start of the stretch.

    Fragments' first messages, commits' first references and first aborted, and relations' messages
    are such numbers. References name frames of the log as ever.
    """

    arrays: ChangesMeta
    # For each frame, and once more behind the last: its first fragment, commit and message.
    fragment: Integers
    commit: Integers
    message: Integers
    # The frame of each relation.
    relation_frame: Integers


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames of changes in one segment."""

    segment: SegmentReader
    frames: FrameHeaders
    # Bytes that hold all of them, and where they begin.
    _data: bytes
    _data_at: int

    def meta(self) -> StretchMeta:
        """What the frames say about their messages; raises `LogCorrupt` where one is damaged."""
        fields = self.frames.fields
        start: Integers = self.frames.start - self._data_at + FRAME_HEADER_SIZE
        size = fields["meta_size"].astype(np.int64)
        self._check_meta(start, size)
        if (size < META_COUNTS.itemsize).any():
            raise self._corrupt(np.argmax(size < META_COUNTS.itemsize), _DESCRIPTION_CUT_OFF)
        counts = records_at(self._data, start, META_COUNTS)["counts"].astype(np.int64)
        sizes = counts[:, : len(META_SECTIONS)] * _ENTRY_SIZES
        if (too_long := META_COUNTS.itemsize + sizes.sum(axis=1) > size).any():
            raise self._corrupt(np.argmax(too_long), _DESCRIPTION_CUT_OFF)
        at: Integers = start + META_COUNTS.itemsize
        arrays: list[Any] = []
        for section, kind in enumerate(META_SECTIONS):
            places = ranges(at, counts[:, section], kind.itemsize)
            arrays.append(records_at(self._data, places, kind))
            at = at + sizes[:, section]
        merged = ChangesMeta(*arrays)
        fragments, relations, commits, references, aborted, _ = counts.T
        message = _before(fields["messages"])
        merged.fragments["first"] += np.repeat(message[:-1], fragments).astype(np.uint32)
        merged.relations["from_message"] += np.repeat(message[:-1], relations).astype(np.uint32)
        for field, found in (("first_reference", references), ("first_aborted", aborted)):
            merged.commits[field] += np.repeat(_before(found)[:-1], commits).astype(np.uint32)
        return StretchMeta(
            merged,
            fragment=_before(fragments),
            commit=_before(commits),
            message=message,
            relation_frame=np.repeat(np.arange(len(self.frames)), relations),
        )

    def _check_meta(self, start: Integers, size: Integers) -> None:
        """Raise `LogCorrupt` for a wrong checksum. Most frames hold as much: one size for all."""
        checksums = self.frames.fields["meta_checksum"]
        if (size != size[0]).any() or not size[0]:
            self._check(start, size, checksums)
            return
        kind = np.dtype((np.void, int(size[0])))
        wrong = first_wrong(records_at(self._data, start, kind), checksums)
        if wrong is not None:
            raise self._corrupt(wrong, _DAMAGED)

    def named(self, meta: StretchMeta) -> Integers:
        """For each reference the fragment of this stretch that it names; -1: it is elsewhere."""
        references = meta.arrays.references
        start = self.frames.start
        frame = np.searchsorted(start, references["position"].astype(np.int64))
        frame = np.minimum(frame, len(start) - 1)
        is_here = (
            (references["segment"] == self.segment.number)
            & (start[frame] == references["position"])
            & (references["fragment"] < np.diff(meta.fragment)[frame])
        )
        found = np.where(is_here, meta.fragment[frame] + references["fragment"], -1)
        return np.asarray(found, np.int64)

    def messages(self) -> Messages:
        """The messages of all frames; between them may be bytes that belong to none."""
        fields = self.frames.fields
        start: Integers = self.frames.start - self._data_at + FRAME_HEADER_SIZE
        start = start + fields["meta_size"]
        size = fields["data_size"].astype(np.int64)
        self._check(start, size, fields["data_checksum"])
        data = memoryview(self._data)
        if (fields["compression"] != Compression.NONE).any():
            data, start = self._decompressed(start, size)
            size = fields["data_raw_size"].astype(np.int64)
        counts = fields["messages"].astype(np.int64)
        if (4 * counts > size).any():
            raise self._corrupt(np.argmax(4 * counts > size), "a frame's messages are cut off")
        lengths = records_at(data, ranges(start, counts, 4), _LENGTH)["bytes"].astype(np.int64)
        behind = np.append(0, np.cumsum(lengths))
        of_frame = _before(counts)
        total = behind[of_frame[1:]] - behind[of_frame[:-1]]
        if (wrong := 4 * counts + total != size).any():
            raise self._corrupt(np.argmax(wrong), "the lengths of a frame's messages do not add up")
        first, last = int(start[0]), int(start[-1] + size[-1])
        shift = start - first + 4 * counts - behind[of_frame[:-1]]
        begin = behind[:-1] + np.repeat(shift, counts)
        return Messages(data[first:last], begin, begin + lengths)

    def _check(self, start: Integers, size: Integers, checksums: npt.NDArray[np.uint32]) -> None:
        data, crc32 = self._data, zlib.crc32
        parts = zip(start.tolist(), (start + size).tolist(), checksums.tolist(), strict=True)
        for index, (low, high, checksum) in enumerate(parts):
            if crc32(data[low:high]) != checksum:
                raise self._corrupt(index, _DAMAGED)

    def _decompressed(self, start: Integers, size: Integers) -> tuple[memoryview, Integers]:
        """The data of all frames without compression, and where each frame's begins."""
        fields = self.frames.fields
        kinds, raw_sizes = fields["compression"].tolist(), fields["data_raw_size"].tolist()
        parts = []
        for index, (low, high) in enumerate(
            zip(start.tolist(), (start + size).tolist(), strict=True)
        ):
            try:
                stored = memoryview(self._data)[low:high]
                parts.append(decompress(stored, Compression(kinds[index]), raw_sizes[index]))
            except (OSError, ValueError) as error:
                raise self._corrupt(index, str(error)) from None
            if len(parts[-1]) != raw_sizes[index]:
                raise self._corrupt(index, "a frame does not have the length that it should")
        return memoryview(b"".join(parts)), _before(fields["data_raw_size"])[:-1]

    def _corrupt(self, frame: int | np.integer, problem: str) -> LogCorrupt:
        return LogCorrupt(self.segment.where, int(self.frames.start[frame]), problem)


def stretches(segment: SegmentReader, frames: FrameHeaders) -> Iterator[Stretch]:
    """All of these frames of changes, in order."""
    start, end = frames.start, frames.end
    far = np.append(start[1:] - end[:-1] > _GAP_BYTES, True)
    at = 0
    while at < len(frames):
        most = int(np.searchsorted(end, start[at] + _STRETCH_BYTES, side="right"))
        stop = min(max(most, at + 1), at + int(np.argmax(far[at:])) + 1)
        low, high = int(start[at]), int(end[stop - 1])
        if frames.data_at <= low and high <= frames.data_at + len(frames.data):
            data, data_at = frames.data, frames.data_at
        else:
            data, data_at = segment.read(low, high), low
        yield Stretch(segment, frames.some(slice(at, stop)), data, data_at)
        at = stop


def stretch_at(segment: SegmentReader, position: int) -> Stretch:
    """The frame that starts here, alone."""
    frame = segment.frame_at(position)
    data = segment.read(position, frame.end)
    fields = records_at(data, np.zeros(1, np.int64), FRAME)
    frames = FrameHeaders(segment.number, np.array([position]), fields, data, position)
    return Stretch(segment, frames, data, position)


def ranges(first: Integers, counts: Integers, step: int = 1) -> Integers:
    """first[0], first[0] + step, …: counts[0] of them; then those of first[1], and so on."""
    shifts: Integers = np.repeat(first - step * (np.cumsum(counts) - counts), counts)
    return shifts + step * np.arange(len(shifts))


def _before(counts: npt.NDArray[np.integer]) -> Integers:
    """How many there are before each, and before the end."""
    return np.append(0, np.cumsum(counts, dtype=np.int64))
