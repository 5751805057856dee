"""A log of very many segments, made without a server."""

from __future__ import annotations

from pathlib import Path

from penstock.changelog.identity import LogIdentity
from penstock.changelog.settings import LogSettings
from penstock.changelog.writer import LogWriter
from penstock.lsn import Lsn
from penstock.postgres.envelope import PAYLOAD_POS
from penstock.postgres.fragments import Commit, Description, Fragment

_START = Lsn(0x1000)
# Table "t" with a column "id" of type int4, and a row of it.
_RELATION = b"R\x00\x00\x03\xe8public\x00t\x00d\x00\x01\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff"
_INSERT = bytes(PAYLOAD_POS) + b"I\x00\x00\x03\xe8N\x00\x01t\x00\x00\x00\x011"


def write_long_log(directory: Path, segments: int) -> None:
    """Each segment has one transaction."""
    identity = LogIdentity.new(
        system_id="1", timeline=1, database="bench", slot="bench", start_lsn=_START
    )
    writer = LogWriter(directory, identity, LogSettings(segment_bytes=1))
    writer.describe(Description(_RELATION))
    for number in range(1, segments):
        lsn = Lsn(_START + 64 * number)
        commit = Commit(lsn, 0)
        writer.append(Fragment(7, False, True, [memoryview(_INSERT)], commit))
        writer.commit(7, commit)
        writer.flush(lsn)
    writer.close()
