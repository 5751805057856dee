"""Which transaction ids a log knows, and what that says about a server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changelog.belonging import check_transaction_ids
from penstock.changelog.transaction_ids import FILE, full_xid, read_highest
from penstock.changelog.writer import LogWriter
from penstock.errors import ServerRewound
from penstock.lsn import Lsn
from penstock.postgres.messages import Insert
from penstock.postgres.system_identity import SystemIdentity, TransactionIds
from penstock.testing import MemoryStorage
from support import wire
from support.logs import IDENTITY, append_transaction

NOW = TransactionIds(next_xid=2**33 + 100, ended_xid=2**33 + 90, ended_lsn=Lsn(0x5000))
ROW = (wire.ITEMS, Insert(1000, (b"1",)))


@given(st.integers(2**32, 2**40), st.integers(-(2**31), 2**31 - 1))
def test_the_lower_half_of_an_id_and_another_one_near_it_give_all_of_it(
    near: int, distance: int
) -> None:
    xid = near + distance
    assert full_xid(near, xid % 2**32) == xid


@given(st.integers(3, 2**40), st.integers(0, 1000), st.integers(0, 2**40))
def test_the_next_id_is_made_of_a_snapshot_and_an_age(ended: int, open_: int, lsn: int) -> None:
    next_xid = ended + 1 + open_
    age = (next_xid - 3) % 2**32
    signed = age - 2**32 if age >= 2**31 else age
    found = TransactionIds.parse(str(ended + 1), str(signed), str(Lsn(lsn)))
    assert found == TransactionIds(next_xid, ended, Lsn(lsn))


def test_ids_of_commits_count_once_they_are_in_the_log() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY)
    writer.begin_ids(NOW)
    append_transaction(writer, 0x2000, *ROW, xid=99)
    assert writer.highest_xid == 2**33 + 99
    writer.close()
    assert read_highest(storage) == 2**33 + 99
    # Another connection, after the 32 bits of ids have begun again.
    writer = LogWriter(storage, IDENTITY)
    assert writer.highest_xid == 2**33 + 99
    writer.begin_ids(replace(NOW, next_xid=3 * 2**32 + 5, ended_xid=3 * 2**32 + 4))
    append_transaction(writer, 0x3000, *ROW, xid=2**32 - 7)
    assert writer.highest_xid == 3 * 2**32 - 7
    writer.close()


def test_what_has_ended_at_the_server_counts_once_its_wal_was_sent() -> None:
    storage = MemoryStorage()
    writer = LogWriter(storage, IDENTITY)
    writer.begin_ids(NOW)
    writer.flush(Lsn(0x4FFF))
    assert writer.highest_xid == 0, "a crash of the server may take it back"
    writer.flush(Lsn(0x5000))
    assert writer.highest_xid == NOW.ended_xid
    writer.close()


@pytest.mark.parametrize("content", [b"", b"x", b"\xff"])
def test_a_damaged_file_only_makes_the_check_weaker(content: bytes) -> None:
    storage = MemoryStorage()
    storage.replace(FILE, content)
    assert read_highest(storage) == 0


def test_a_server_is_refused_if_the_log_knows_its_next_id() -> None:  # M1.8
    server = SystemIdentity("7000", 1, Lsn(0x9000), "app", NOW)
    check_transaction_ids(0, server, "log")
    check_transaction_ids(NOW.next_xid - 1, server, "log")
    with pytest.raises(ServerRewound, match="restored from an older image"):
        check_transaction_ids(NOW.next_xid, server, "log")
