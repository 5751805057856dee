"""Committed changes in bulk: many messages at once, with the commit that each belongs to.

A run is what a few megabytes of the log hold, in commit order. Whoever decodes it looks at columns
of positions; nothing here is done once per message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.changelog.aborted import is_aborted
from penstock.changelog.format import (
    ChangesMeta,
    FragmentFlag,
    FrameKind,
    Messages,
    Records,
)
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.segments import FrameAt, SegmentReader
from penstock.lsn import Lsn
from penstock.postgres.fragments import touched

Integers = npt.NDArray[np.int64]

# Enough to make the work per run small beside that per message, and little memory.
_RUN_BYTES = 4 * 2**20
PADDING = bytes(64)
_TRUNCATE = ord("T")


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a range one task reads: all commits in it, or fragments of its only one."""

    after: Position
    up_to: Position
    # Of the commit at `up_to`; None: all of all.
    fragments: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class BatchRange:
    """What a batch covers: all that commits in (after, up_to]."""

    after: Lsn
    up_to: Lsn
    # From where on the next one is planned: not its end, if more was read than had been planned.
    planned: Lsn


@dataclass(frozen=True, slots=True)
class Run:
    """Messages in commit order. All arrays have one entry for each message."""

    # The messages, and behind them `PADDING`, so that words can be read where the last one ends.
    buffer: bytes
    start: Integers
    end: Integers
    # Whether an xid stands behind the message's kind.
    streamed: npt.NDArray[np.bool_]
    commit_lsn: npt.NDArray[np.uint64]
    commit_us: Integers
    xid: Integers
    seq: Integers
    # Which of `definitions` the message was received under; -1 for those of several tables.
    definition: npt.NDArray[np.int32]
    # Which message is a truncate, and of which of `definitions`: one entry for each of its tables.
    emptied: tuple[tuple[int, int], ...]
    definitions: tuple[tuple[bytes, ...], ...]


def runs(reader: LogReader, share: Share) -> Iterator[Run]:
    """Everything that commits in (after, up_to], or the share's part of it."""
    collector = _Collector(reader)
    segment: SegmentReader | None = None
    for frame in reader.frames(share.after, share.up_to):
        if frame.header.kind is not FrameKind.CHANGES or not frame.header.commits:
            continue
        if segment is None or segment.number != frame.segment:
            segment = reader.segment(frame.segment)
        meta = segment.meta(frame)
        chosen = (meta.commits["lsn"] > share.after.lsn) & (meta.commits["lsn"] <= share.up_to.lsn)
        yield from collector.take(segment, frame, meta, meta.commits[chosen], share.fragments)
    yield from collector.rest()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A frame's messages, and where in the run's buffer they are."""

    meta: ChangesMeta
    messages: Messages
    base: int
    definition_of: npt.NDArray[np.int32]
    # The definitions of a truncate's tables, by its message.
    emptied: dict[int, list[int]]


class _Collector:
    """Gathers fragments in commit order until they make a run."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._known: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._clear()

    def _clear(self) -> None:
        self._buffers: list[memoryview] = []
        self._size = 0
        self._frames: dict[tuple[int, int], _Loaded] = {}
        self._definitions: dict[tuple[bytes, ...], int] = {}
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._count = 0
        self._emptied: list[tuple[int, int]] = []

    def take(
        self,
        segment: SegmentReader,
        frame: FrameAt,
        meta: ChangesMeta,
        commits: Records,
        fragments: tuple[int, int] | None,
    ) -> Iterator[Run]:
        """What commits in a frame; wherever the fragments are, they come in order."""
        is_here = _all_here(frame, meta, commits) & (fragments is None)
        at = 0
        while at < len(commits):
            count = int(np.argmin(np.append(is_here[at:], False)))
            if count:
                # The common case, many transactions at once.
                loaded = self._frames.get((frame.segment, frame.position))
                loaded = loaded or self._load(segment, frame, meta)
                group = commits[at : at + count]
                references = _sliced(meta.references, group["first_reference"], group["references"])
                self._add(loaded, references, np.repeat(group, group["references"]))
            else:
                yield from self._fragments(meta, commits[at], fragments)
            at += count or 1
            if self._size >= _RUN_BYTES:
                yield from self.rest()

    def _fragments(
        self, meta: ChangesMeta, commit: Records, fragments: tuple[int, int] | None
    ) -> Iterator[Run]:
        """Of a transaction that spans frames, or of which something was rolled back."""
        first, first_aborted = int(commit["first_reference"]), int(commit["first_aborted"])
        aborted = meta.aborted[first_aborted : first_aborted + int(commit["aborted"])]
        low, high = fragments or (0, int(commit["references"]))
        for index in range(first + low, first + high):
            reference = meta.references[index : index + 1]
            place = (int(reference["segment"][0]), int(reference["position"][0]))
            loaded = self._frames.get(place) or self._fetch(*place)
            self._add(loaded, reference, commit[None], aborted)
            if self._size >= _RUN_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[Run]:
        """What has been gathered, if anything."""
        if self._parts:
            parts = zip(*self._parts, strict=True)
            start, end, streamed, lsn, time_us, xid, seq, definition = map(np.concatenate, parts)
            yield Run(
                b"".join((*self._buffers, PADDING)),
                *(start, end, streamed),
                *(lsn, time_us, xid, seq),
                definition=definition,
                emptied=tuple(self._emptied),
                definitions=tuple(self._definitions),
            )
        self._clear()

    def _fetch(self, number: int, position: int) -> _Loaded:
        segment = self._reader.segment(number)
        frame = segment.frame_at(position)
        return self._load(segment, frame, segment.meta(frame))

    def _load(self, segment: SegmentReader, frame: FrameAt, meta: ChangesMeta) -> _Loaded:
        messages = segment.messages(frame)
        streamed = _streamed(meta, len(messages))
        loaded = _Loaded(
            meta,
            messages,
            self._size,
            self._describe(segment, meta, messages, streamed),
            self._truncates(segment, meta, messages, streamed),
        )
        self._frames[frame.segment, frame.position] = loaded
        self._buffers.append(messages.buffer)
        self._size += len(messages.buffer)
        return loaded

    def _describe(
        self, segment: SegmentReader, meta: ChangesMeta, messages: Messages, streamed: Integers
    ) -> npt.NDArray[np.int32]:
        """Which definition each message of a frame uses."""
        found = np.full(len(messages), -1, np.int32)
        if not len(messages):
            return found
        # A truncate has several tables: what stands there is their number.
        rows = _kinds(messages) != _TRUNCATE
        index = np.arange(len(messages))
        oids = messages.uint32(index, 1 + 4 * streamed)
        for entry in meta.relations:
            ordinal = self._ordinal(segment, int(entry["position"]))
            found[rows & (oids == entry["oid"]) & (index >= entry["from_message"])] = ordinal
        return found

    def _truncates(
        self, segment: SegmentReader, meta: ChangesMeta, messages: Messages, streamed: Integers
    ) -> dict[int, list[int]]:
        """What each truncate of a frame empties, as its tables were described then."""
        found = {}
        for index in np.flatnonzero(_kinds(messages) == _TRUNCATE).tolist():
            before = meta.relations[meta.relations["from_message"] <= index]
            in_force = dict(zip(before["oid"].tolist(), before["position"].tolist(), strict=True))
            oids = touched(messages[index], bool(streamed[index]))
            found[index] = [self._ordinal(segment, in_force[oid]) for oid in oids]
        return found

    def _ordinal(self, segment: SegmentReader, position: int) -> int:
        place = (segment.number, position)
        if place not in self._known:
            self._known[place] = self._reader.definition(*place)
        return self._definitions.setdefault(self._known[place], len(self._definitions))

    def _add(
        self,
        loaded: _Loaded,
        references: Records,
        commits: Records,
        aborted: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Messages of some fragments of a frame; `commits` has one entry for each of them."""
        fragments = loaded.meta.fragments[references["fragment"]]
        counts = fragments["messages"].astype(np.int64)
        index = _ranges(fragments["first"].astype(np.int64), counts)
        which = np.repeat(np.arange(len(fragments)), counts)
        within = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
        streamed = (fragments["flags"] & FragmentFlag.STREAMED != 0)[which]
        if aborted is not None and len(aborted):
            survives = ~is_aborted(loaded.messages.uint32(index, 1), aborted)
            index, which, streamed = index[survives], which[survives], streamed[survives]
            within = np.arange(len(index))  # one fragment at a time: its survivors are counted
        if loaded.emptied:
            for place in np.flatnonzero(loaded.definition_of[index] < 0).tolist():
                ordinals = loaded.emptied[int(index[place])]
                self._emptied += [(self._count + place, ordinal) for ordinal in ordinals]
        self._count += len(index)
        starts = loaded.messages.offsets + loaded.base
        # Field by field: to gather whole records first would copy them for each message.
        self._parts.append(
            (
                starts[index],
                starts[index + 1],
                streamed,
                commits["lsn"][which],
                commits["time_us"][which],
                commits["xid"].astype(np.int64)[which],
                references["first_seq"].astype(np.int64)[which] + within,
                loaded.definition_of[index],
            )
        )


def _all_here(frame: FrameAt, meta: ChangesMeta, commits: Records) -> npt.NDArray[np.bool_]:
    """For each commit whether nothing of it was rolled back, and the frame holds all of it."""
    here = (meta.references["segment"] == frame.segment) & (
        meta.references["position"] == frame.position
    )
    elsewhere = np.append(0, np.cumsum(~here))
    first = commits["first_reference"].astype(np.int64)
    missing = elsewhere[first + commits["references"]] - elsewhere[first]
    return np.asarray((missing == 0) & (commits["aborted"] == 0), bool)


def _kinds(messages: Messages) -> npt.NDArray[np.uint8]:
    return np.frombuffer(messages.buffer, np.uint8)[messages.offsets[:-1]]


def _streamed(meta: ChangesMeta, messages: int) -> Integers:
    """1 for each message that has an xid behind its kind."""
    found = np.zeros(messages, np.int64)
    for fragment in meta.fragments[meta.fragments["flags"] & FragmentFlag.STREAMED != 0]:
        first = int(fragment["first"])
        found[first : first + int(fragment["messages"])] = 1
    return found


def _ranges(first: Integers, counts: Integers) -> Integers:
    """first[0], first[0] + 1, …, then those of first[1], and so on."""
    shifts: Integers = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return shifts + np.arange(len(shifts))


def _sliced(array: Records, first: Records, counts: Records) -> Records:
    return array[_ranges(first.astype(np.int64), counts.astype(np.int64))]
