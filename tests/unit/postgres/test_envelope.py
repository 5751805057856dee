"""The envelope: what wraps pgoutput, byte by byte as the protocol's documentation draws it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.postgres.envelope import PAYLOAD_POS, Keepalive, StatusUpdate
from support.pgoutput_strategies import any_lsns
from support.wire import begin, keepalive

CLOCK_2001_S = 978_307_200.0  # 2001-01-01, 366 days after Postgres's epoch


@given(any_lsns, st.booleans())
def test_a_keepalive_gives_the_servers_position_and_its_question(wal_end: Lsn, reply: bool) -> None:
    parsed = Keepalive.parse(memoryview(keepalive(wal_end, reply=reply)))
    assert parsed == Keepalive(wal_end, reply)
    assert isinstance(parsed.wal_end, Lsn)


@pytest.mark.parametrize("length", [0, 1, 9, 17, 19])
def test_a_keepalive_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ProtocolViolation, match="length") as caught:
        Keepalive.parse((keepalive(1) + b"\0")[:length])
    assert vars(caught.value)["byte_pos"] == length


def test_a_status_update_is_laid_out_as_the_protocol_says() -> None:
    update = StatusUpdate(Lsn(0x1_0000_0002), Lsn(0x3), reply_requested=True)
    written = update.encode(CLOCK_2001_S)
    assert written == bytes.fromhex(
        "72"  # r
        "0000000100000002"  # written: received
        "0000000000000003"  # flushed: durable, the field that moves the slot
        "0000000000000003"  # applied
        "00001cc2a9eb4000"  # 366 days in microseconds
        "01"
    )
    assert StatusUpdate(Lsn(9), Lsn(3), reply_requested=False).encode(0.0)[-1] == 0


def test_the_payload_starts_where_its_kind_is() -> None:
    assert begin()[PAYLOAD_POS : PAYLOAD_POS + 1] == b"B"
