"""The checksum of joined pieces comes from theirs, and a wrong one is found among many."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.changelog.checksums import combined, first_wrong

PIECES = st.integers(1, 200).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=40)
)


def checksums(pieces: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([zlib.crc32(piece) for piece in pieces], np.uint32)


@given(PIECES)
def test_checksums_of_pieces_give_that_of_all_of_them(pieces: list[bytes]) -> None:
    assert combined(checksums(pieces), len(pieces[0])) == zlib.crc32(b"".join(pieces))


def test_no_piece_has_the_checksum_of_nothing() -> None:
    assert combined(np.empty(0, np.uint32), 72) == zlib.crc32(b"")


@given(PIECES, st.data())
def test_the_first_wrong_piece_is_found(pieces: list[bytes], data: st.DataObject) -> None:
    expected = checksums(pieces)
    kind = np.dtype((np.void, len(pieces[0])))
    assert first_wrong(np.frombuffer(b"".join(pieces), kind), expected) is None
    wrong = data.draw(st.integers(0, len(pieces) - 1))
    bit = data.draw(st.integers(0, 8 * len(pieces[0]) - 1))
    damaged = bytearray(pieces[wrong])
    damaged[bit // 8] ^= 1 << bit % 8
    pieces = [*pieces[:wrong], bytes(damaged), *pieces[wrong + 1 :]]
    assert first_wrong(np.frombuffer(b"".join(pieces), kind), expected) == wrong
