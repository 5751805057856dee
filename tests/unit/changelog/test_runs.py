"""Runs hold what the plain reader gives, whatever the frames, and however a range is shared."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.format import Compression
from penstock.changelog.reader import LogReader, Position
from penstock.changelog.runs import Share, runs
from penstock.changelog.settings import LogSettings
from penstock.changelog.writer import LogWriter
from penstock.decode.definition import Definition
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.messages import Insert, Relation, Truncate
from penstock.postgres.session import ReplicationSession, SessionSettings
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, all_compressed, apply, write
from support.random_logs import one_frame_each
from support.repeats import repeats
from support.stories import tell

SEEDS = st.integers(0, 2**32)


def changes(reader: LogReader, *shares: Share) -> list[tuple[int, int, bytes, bytes]]:
    """Commit LSN, seq, definition and payload of each change."""
    found = []
    for share in shares:
        for run in runs(reader, share):
            for index, (start, end) in enumerate(zip(run.start, run.end, strict=True)):
                payload = run.buffer[start:end]
                if run.streamed[index]:
                    payload = payload[:1] + payload[5:]
                relation = run.definitions[run.definition[index]][0]
                found.append((run.commit_lsn[index], run.seq[index], relation, payload))
    return found


def expected(reader: LogReader, after: Position, up_to: Position) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for transaction in reader.transactions(after, up_to):
        relation, seq = b"", 0
        for payload in transaction.payloads:
            if payload[:1] == b"R":
                relation = payload
            else:
                found.append((transaction.commit_lsn, seq, relation, payload))
                seq += 1
    return found


def a_log(seed: int, settings: LogSettings) -> tuple[LogReader, list[int]]:
    chance = random.Random(seed)
    story = tell(chance, transactions=15)
    storage = MemoryStorage()
    write(storage, story.runs(chance), chance, settings)
    return LogReader(storage), [int(t.commit_lsn) for t in story.truth()]


@settings(max_examples=repeats(25, soak=60), deadline=None)
@given(SEEDS, st.sampled_from([300, 1000, 2**20]))
def test_a_range_gives_its_changes_in_commit_order_with_their_ordinals(
    seed: int, frame_bytes: int
) -> None:  # M3.3, M5.1
    reader, lsns = a_log(seed, LogSettings(segment_bytes=4_000, frame_bytes=frame_bytes))
    low, high = sorted(random.Random(seed).choices([int(reader.start().lsn), *lsns], k=2))
    after, up_to = reader.locate(Lsn(low)), reader.locate(Lsn(high))
    assert changes(reader, Share(after, up_to)) == expected(reader, after, up_to)


@settings(max_examples=repeats(25, soak=60), deadline=None)
@given(SEEDS, st.sampled_from([300, 2**20]), st.sampled_from(Compression))
def test_many_small_frames_read_at_once_give_what_each_of_them_holds(
    seed: int, frame_bytes: int, compression: Compression
) -> None:  # M3.3, M5.1
    chance = random.Random(seed)
    story = tell(chance, transactions=12)
    storage = MemoryStorage()
    # Beside frames that are compressed there may be some from before: both are read as one.
    kinds = [compression, chance.choice(list(Compression))]
    every = [run[at : at + 1] for run in story.runs(chance) for at in range(len(run))]
    half = chance.randrange(len(every))
    with all_compressed():
        writer = LogWriter(storage, IDENTITY, LogSettings(2**20, 3600, frame_bytes, kinds[0]))
        fragmenter = Fragmenter(writer.complete_lsn)
        received = ReplicationSession(writer.complete_lsn, SessionSettings(), now=0)
        for number, run in enumerate(every):
            if number == half:
                writer._settings = replace(writer._settings, compression=kinds[1])
            received.receive(run, 0)
            apply(writer, fragmenter, run)
            if chance.random() < 0.8:
                writer.flush(received.received_lsn)
        writer.flush(received.received_lsn)
        writer.close()
    reader = LogReader(storage)
    lsns = [int(commit.lsn) for commit in reader.commits(reader.start(), reader.end())]
    low, high = sorted(chance.choices([int(reader.start().lsn), *lsns], k=2))
    for after, up_to in [
        (reader.start(), reader.end()),
        (reader.locate(Lsn(low)), reader.locate(Lsn(high))),
    ]:
        assert changes(reader, Share(after, up_to)) == expected(reader, after, up_to)


def test_reading_is_not_done_frame_by_frame() -> None:  # M3.5
    reads = {}
    for transactions in (20, 2_000):
        storage = one_frame_each(transactions)
        reader = LogReader(storage)
        before = storage.reads
        found = changes(reader, Share(reader.start(), reader.end()))
        reads[transactions] = storage.reads - before
        assert len(found) == transactions
    assert reads[2_000] <= reads[20] + 10


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_the_fragments_of_a_commit_can_be_shared_out(seed: int) -> None:  # M5.1
    reader, _ = a_log(seed, LogSettings(frame_bytes=300))
    after = reader.start()
    for commit in list(reader.commits(after, reader.end())):
        up_to = reader.locate(commit.lsn)
        count = len(commit.fragments)
        cut = random.Random(seed).randint(0, count)
        shares = [Share(after, up_to, part) for part in ((0, cut), (cut, count))]
        assert changes(reader, *shares) == expected(reader, after, up_to)
        after = up_to


@settings(max_examples=repeats(25, soak=60), deadline=None)
@given(SEEDS)
def test_each_table_of_a_truncate_is_the_one_that_it_was_then(seed: int) -> None:  # M4.6
    chance = random.Random(seed)
    storage = MemoryStorage()
    frame_bytes = chance.choice([100, 400, 2**20])
    writer = LogWriter(storage, IDENTITY, LogSettings(4_000, 3600, frame_bytes))
    fragmenter = Fragmenter(writer.complete_lsn)
    names = {1: "one", 2: "two", 3: "three"}
    expected: list[tuple[int, int, list[str]]] = []
    for number in range(12):
        lsn, streamed = 0x2000 + 16 * number, chance.random() < 0.4
        xid = 700 + number
        run = [wire.stream_start(xid) if streamed else wire.begin(lsn - 8, xid)]
        aborted = xid + 1000 if streamed and chance.random() < 0.5 else None
        seq = 0
        for _ in range(chance.randint(1, 5)):
            by = chance.choice([xid, aborted or xid]) if streamed else None
            for oid in chance.sample(sorted(names), k=chance.randint(0, 2)):
                names[oid] = f"name{chance.randrange(9)}"
            for oid, name in names.items():
                run.append(wire.xlog(Relation(oid, "public", name, "d", wire.ITEMS.columns, by)))
            oids = chance.sample(sorted(names), k=chance.randint(1, 3))
            emptied = chance.random() < 0.5
            change = Truncate(False, False, tuple(oids), by) if emptied else None
            run.append(wire.xlog(change or Insert(oids[0], (b"1",), by)))
            if by is None or by != aborted:
                if emptied:
                    expected.append((lsn, seq, [names[oid] for oid in oids]))
                seq += 1
        if streamed:
            run.append(wire.stream_stop())
            run += [wire.stream_abort(xid, aborted)] if aborted else []
        run.append(wire.stream_commit(xid, lsn) if streamed else wire.commit(lsn))
        apply(writer, fragmenter, [memoryview(message) for message in run])
        if chance.random() < 0.4:
            writer.flush(Lsn(lsn))
    writer.flush(Lsn(lsn))
    writer.close()
    reader = LogReader(storage)
    found: dict[tuple[int, int], list[str]] = {}
    for each in runs(reader, Share(reader.start(), reader.end())):
        for message, ordinal in each.emptied:
            identity = int(each.commit_lsn[message]), int(each.seq[message])
            name = Definition.parse(each.definitions[ordinal]).table.name
            found.setdefault(identity, []).append(name)
    assert found == {(lsn, seq): names for lsn, seq, names in expected}
