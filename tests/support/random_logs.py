"""Logs of random transactions, small segments and frames, and what is in them."""

from __future__ import annotations

import random

from penstock.changelog.reader import LogReader
from penstock.changelog.runs import Share, runs
from penstock.changelog.settings import LogSettings
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, apply, write
from support.stories import tell


def random_log(seed: int) -> LogReader:
    chance = random.Random(seed)
    story = tell(chance, transactions=20)
    storage = MemoryStorage()
    tiny = LogSettings(segment_bytes=4_000, frame_bytes=chance.choice([200, 1000, 2**20]))
    write(storage, story.runs(chance), chance, tiny)
    return LogReader(storage)


def crowded_log(seed: int) -> LogReader:
    """A few frames of many commits each."""
    chance = random.Random(seed)
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY, LogSettings(segment_bytes=800))
    fragmenter = Fragmenter(writer.complete_lsn)
    lsn = 0x2000
    for _ in range(3):
        for _ in range(chance.randint(2, 9)):
            lsn += 16
            run = wire.transaction(lsn, *range(chance.randint(1, 4)))
            apply(writer, fragmenter, [memoryview(message) for message in run])
        # Sometimes the server has told of more than the last commit.
        lsn += chance.choice([0, 8])
        writer.flush(Lsn(lsn))
    writer.close()
    return LogReader(storage)


def one_frame_each(transactions: int) -> MemoryStorage:
    """A log of single changes that were flushed one by one, as on a quiet day."""
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY)
    fragmenter = Fragmenter(writer.complete_lsn)
    for number in range(transactions):
        lsn = 0x2000 + 16 * number
        run = wire.transaction(lsn, number)
        apply(writer, fragmenter, [memoryview(message) for message in run])
        writer.flush(Lsn(lsn))
    writer.close()
    return storage


def identities(reader: LogReader, *parts: Share) -> list[tuple[int, int]]:
    """Commit LSN and seq of each change."""
    return [
        identity
        for part in parts
        for run in runs(reader, part)
        for identity in zip(run.commit_lsn.tolist(), run.seq.tolist(), strict=True)
    ]
