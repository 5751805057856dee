"""Writing and reading logs in tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.capture.storing import store
from penstock.changelog import building
from penstock.changelog.compression import compress
from penstock.changelog.identity import LogIdentity
from penstock.changelog.log import ChangeLog
from penstock.changelog.reader import LogReader
from penstock.changelog.settings import LogSettings
from penstock.changelog.storage import Storage
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
from penstock.postgres.fragments import Fragmenter
from penstock.postgres.messages import Message
from penstock.postgres.session import ReplicationSession, SessionSettings
from penstock.postgres.transaction import Transaction
from support import wire
from support.database import Database
from support.workload import SLOT

IDENTITY = LogIdentity.new(
    system_id="7000", timeline=1, database="app", slot="penstock", start_lsn=Lsn(0x1000)
)
# So small that a few transactions fill many frames and segments.
SMALL = LogSettings(segment_bytes=3_000, frame_bytes=400)


@contextmanager
def all_compressed() -> Iterator[None]:
    """Compress every frame, however small: those of tests would be stored as they are."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            building, "compress_if_smaller", lambda data, kind: (compress(data, kind), kind)
        )
        yield


def apply(log: ChangeLog, fragmenter: Fragmenter, run: Sequence[memoryview]) -> None:
    """What capture does with a run."""
    store(log, fragmenter.feed(run))


def write(
    storage: Storage,
    runs: Sequence[Sequence[memoryview]],
    chance: random.Random,
    settings: LogSettings = SMALL,
) -> None:
    """One connection: everything that comes, flushed now and then and at the end."""
    writer = LogWriter(storage, IDENTITY, settings)
    try:
        session = ReplicationSession(writer.complete_lsn, SessionSettings(), now=0)
        fragmenter = Fragmenter(writer.complete_lsn)
        for run in runs:
            session.receive(run, 0)
            apply(writer, fragmenter, run)
            if chance.random() < 0.3:
                writer.flush(session.received_lsn)
        writer.flush(session.received_lsn)
    finally:
        writer.close()


def read(storage: Storage) -> list[Transaction]:
    reader = LogReader(storage)
    return list(reader.transactions(reader.start(), reader.end()))


def append_transaction(writer: LogWriter, lsn: int, *messages: Message, xid: int = 7) -> None:
    """A whole transaction that ends at `lsn`, made durable and visible."""
    run = [
        wire.begin(lsn - 8, xid),
        *(wire.xlog(message) for message in messages),
        wire.commit(lsn),
    ]
    views = [memoryview(message) for message in run]
    apply(writer, Fragmenter(writer.complete_lsn), views)
    writer.flush(Lsn(lsn))


def begin_log(database: Database, directory: Path, complete_up_to: Lsn, slot: str = SLOT) -> None:
    """A log of this database that knows everything up to a position, and nothing else."""
    system_id = database.value("SELECT system_identifier::text FROM pg_control_system()")
    ours = replace(identity(database, complete_up_to, system_id), slot=slot)
    LogWriter(directory, ours).close()


def identity(database: Database, start_lsn: Lsn, system_id: str) -> LogIdentity:
    return LogIdentity.new(
        system_id=system_id,
        timeline=1,
        database=database.name,
        slot=SLOT,
        start_lsn=start_lsn,
    )
