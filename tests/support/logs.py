"""Writing and reading logs in tests."""

from __future__ import annotations

import random
from collections.abc import Sequence

from penstock.capture.fragments import Abort, Description, Fragment, Fragmenter
from penstock.capture.transactions import Transaction
from penstock.changelog.identity import LogIdentity
from penstock.changelog.reader import LogReader
from penstock.changelog.storage import Storage
from penstock.changelog.writer import ChangeLog, LogSettings, LogWriter
from penstock.lsn import Lsn
from penstock.postgres.session import ReplicationSession, SessionSettings

IDENTITY = LogIdentity.new(
    system_id="7000", timeline=1, database="app", slot="penstock", start_lsn=Lsn(0x1000)
)
# So small that a few transactions fill many frames and segments.
SMALL = LogSettings(segment_bytes=3_000, frame_bytes=400)


def apply(log: ChangeLog, fragmenter: Fragmenter, run: Sequence[memoryview]) -> None:
    """What capture does with a run."""
    for event in fragmenter.feed(run):
        match event:
            case Fragment():
                if event.messages:
                    log.append(event)
                if event.commit is not None:
                    log.commit(event.xid, event.commit)
            case Description():
                log.describe(event)
            case Abort():
                log.abort(event)


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
