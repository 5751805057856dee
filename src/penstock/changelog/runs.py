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
from penstock.changelog.format import FragmentFlag, Messages, Records
from penstock.changelog.frames import Integers
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.segments import SegmentReader
from penstock.changelog.stretches import Stretch, StretchMeta, ranges, stretch_at, stretches
from penstock.errors import LogCorrupt
from penstock.lsn import Lsn
from penstock.postgres.fragments import touched

# Enough to make the work per run small beside that per message, and little memory.
_RUN_BYTES = 4 * 2**20
PADDING = bytes(64)
_TRUNCATE = ord("T")
# The number of the only commit.
_ONLY = np.zeros(1, np.int64)


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
    collector = _Collector(reader, share)
    segment: SegmentReader | None = None
    for frames in reader.headers(share.after, share.up_to):
        if segment is None or segment.number != frames.segment:
            segment = reader.segment(frames.segment)
        committing = frames.some(frames.of_changes & (frames.fields["commits"] > 0))
        for stretch in stretches(segment, committing):
            yield from collector.take(stretch)
    yield from collector.rest()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A stretch's messages, and where in the run's buffer they are."""

    meta: StretchMeta
    messages: Messages
    base: int
    definition_of: npt.NDArray[np.int32]
    # The definitions of a truncate's tables, by its message.
    emptied: dict[int, list[int]]


class _Collector:
    """Gathers fragments in commit order until they make a run."""

    def __init__(self, reader: LogReader, share: Share) -> None:
        self._reader = reader
        self._share = share
        self._known: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._clear()

    def _clear(self) -> None:
        self._buffers: list[memoryview] = []
        self._size = 0
        # By the segment and position of the first frame.
        self._loaded: dict[tuple[int, int], _Loaded] = {}
        self._definitions: dict[tuple[bytes, ...], int] = {}
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._count = 0
        self._emptied: list[tuple[int, int]] = []

    def take(self, stretch: Stretch) -> Iterator[Run]:
        """What commits in a stretch; wherever the fragments are, they come in order."""
        meta = stretch.meta()
        lsn = meta.arrays.commits["lsn"]
        after, up_to = self._share.after.lsn, self._share.up_to.lsn
        commits = meta.arrays.commits[(lsn > after) & (lsn <= up_to)]
        fragments = stretch.named(meta)
        is_here = _all_here(fragments, commits) & (self._share.fragments is None)
        at = 0
        while at < len(commits):
            count = int(np.argmin(np.append(is_here[at:], False)))
            if count:
                # The common case, many transactions at once.
                group = commits[at : at + count]
                counts = group["references"].astype(np.int64)
                which = ranges(group["first_reference"].astype(np.int64), counts)
                self._add(
                    self._load(stretch, meta),
                    fragments[which],
                    meta.arrays.references["first_seq"][which],
                    group,
                    np.repeat(np.arange(count), counts),
                )
            else:
                yield from self._one_by_one(stretch, meta, fragments, commits[at : at + 1])
            at += count or 1
            if self._size >= _RUN_BYTES:
                yield from self.rest()

    def _one_by_one(
        self, stretch: Stretch, meta: StretchMeta, fragments: Integers, commit: Records
    ) -> Iterator[Run]:
        """A transaction that spans frames, or of which something was rolled back."""
        first, first_aborted = int(commit["first_reference"][0]), int(commit["first_aborted"][0])
        aborted = meta.arrays.aborted[first_aborted : first_aborted + int(commit["aborted"][0])]
        low, high = self._share.fragments or (0, int(commit["references"][0]))
        for index in range(first + low, first + high):
            reference = meta.arrays.references[index : index + 1]
            if fragments[index] >= 0:
                loaded, fragment = self._load(stretch, meta), fragments[index : index + 1]
            else:
                place = (int(reference["segment"][0]), int(reference["position"][0]))
                loaded, fragment = self._fetch(*place), reference["fragment"]
                if fragment[0] >= len(loaded.meta.arrays.fragments):
                    where = self._reader.segment(place[0]).where
                    raise LogCorrupt(where, place[1], "it lacks a fragment of a transaction")
            self._add(loaded, fragment, reference["first_seq"], commit, _ONLY, aborted)
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
        """A single frame, wherever it is."""
        if (loaded := self._loaded.get((number, position))) is not None:
            return loaded
        single = stretch_at(self._reader.segment(number), position)
        return self._load(single, single.meta())

    def _load(self, stretch: Stretch, meta: StretchMeta) -> _Loaded:
        place = (stretch.segment.number, int(stretch.frames.start[0]))
        if (loaded := self._loaded.get(place)) is not None:
            return loaded
        messages = stretch.messages()
        streamed = _streamed(meta, len(messages))
        loaded = self._loaded[place] = _Loaded(
            meta,
            messages,
            self._size,
            self._describe(stretch.segment, meta, messages, streamed),
            self._truncates(stretch.segment, meta, messages, streamed),
        )
        self._buffers.append(messages.buffer)
        self._size += len(messages.buffer)
        return loaded

    def _describe(
        self, segment: SegmentReader, meta: StretchMeta, messages: Messages, streamed: Integers
    ) -> npt.NDArray[np.int32]:
        """Which definition each message uses: the last one that its frame has for it."""
        relations = meta.arrays.relations
        found = np.full(len(messages), -1, np.int32)
        if not len(messages) or not len(relations):
            return found
        positions, which = np.unique(relations["position"], return_inverse=True)
        ordinals = [self._ordinal(segment, position) for position in positions.tolist()]
        index = np.arange(len(messages))
        oids = messages.uint32(index, 1 + 4 * streamed)
        in_order = _key(relations["oid"], relations["from_message"])
        order = np.argsort(in_order, kind="stable")
        last = np.searchsorted(in_order[order], _key(oids, index), side="right") - 1
        entry = order[np.maximum(last, 0)]
        frame = np.repeat(np.arange(len(meta.message) - 1), np.diff(meta.message))
        # A truncate has several tables: what stands there is their number.
        is_described = (
            (messages.kinds != _TRUNCATE)
            & (last >= 0)
            & (relations["oid"][entry] == oids)
            & (meta.relation_frame[entry] == frame)
        )
        found[is_described] = np.array(ordinals, np.int32)[which[entry[is_described]]]
        return found

    def _truncates(
        self, segment: SegmentReader, meta: StretchMeta, messages: Messages, streamed: Integers
    ) -> dict[int, list[int]]:
        """What each truncate empties, as its tables were described then."""
        found = {}
        for index in np.flatnonzero(messages.kinds == _TRUNCATE).tolist():
            frame = int(np.searchsorted(meta.message, index, side="right")) - 1
            relations = meta.arrays.relations[meta.relation_frame == frame]
            before = relations[relations["from_message"] <= index]
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
        fragment: npt.NDArray[np.integer],
        first_seq: npt.NDArray[np.uint64],
        commits: Records,
        of_commit: Integers,
        aborted: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Add the messages of some fragments; `of_commit` has the number of each one's commit."""
        fragments = loaded.meta.arrays.fragments[fragment]
        counts = fragments["messages"].astype(np.int64)
        index = ranges(fragments["first"].astype(np.int64), counts)
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
        commit = of_commit[which]
        # Field by field: to gather whole records first would copy them for each message.
        self._parts.append(
            (
                loaded.messages.start[index] + loaded.base,
                loaded.messages.end[index] + loaded.base,
                streamed,
                commits["lsn"][commit],
                commits["time_us"][commit],
                commits["xid"].astype(np.int64)[commit],
                first_seq.astype(np.int64)[which] + within,
                loaded.definition_of[index],
            )
        )


def _all_here(fragments: Integers, commits: Records) -> npt.NDArray[np.bool_]:
    """For each commit whether nothing of it was rolled back, and the stretch holds all of it."""
    elsewhere = np.append(0, np.cumsum(fragments < 0))
    first = commits["first_reference"].astype(np.int64)
    missing = elsewhere[first + commits["references"]] - elsewhere[first]
    return np.asarray((missing == 0) & (commits["aborted"] == 0), bool)


def _key(oids: npt.NDArray[np.uint32], messages: npt.NDArray[np.integer]) -> Integers:
    """By oid, and for one oid by message."""
    return np.asarray((oids.astype(np.int64) << 32) + messages, np.int64)


def _streamed(meta: StretchMeta, messages: int) -> Integers:
    """1 for each message that has an xid behind its kind."""
    found = np.zeros(messages, np.int64)
    fragments = meta.arrays.fragments
    streamed = fragments[fragments["flags"] & FragmentFlag.STREAMED != 0]
    found[ranges(streamed["first"].astype(np.int64), streamed["messages"].astype(np.int64))] = 1
    return found
