"""Checksums of many pieces at once: is each piece what its CRC-32 says? Pure.

CRC-32 is linear: the checksum of two pieces that follow each other comes from theirs. So pieces of
one size are joined, and one call says whether all of them are right. Only if not is each one
looked at.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np
import numpy.typing as npt

Checksums = npt.NDArray[np.uint32]

_BITS = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32))


def combined(checksums: Checksums, size: int) -> int:
    """The CRC-32 of pieces of `size` bytes each, joined, from the CRC-32 of each of them.

    >>> pieces = [b"abc", b"def", b"ghi"]
    >>> each = np.array([zlib.crc32(piece) for piece in pieces], np.uint32)
    >>> combined(each, 3) == zlib.crc32(b"abcdefghi")
    True
    """
    while len(checksums) > 1:
        if len(checksums) % 2:
            checksums = np.append(np.uint32(0), checksums)  # as of nothing, which changes nothing
        checksums = _followed_by(checksums[0::2], size) ^ checksums[1::2]
        size *= 2
    return int(checksums[0]) if len(checksums) else 0


def first_wrong(pieces: npt.NDArray[np.void], checksums: Checksums) -> int | None:
    """The first piece that does not have its checksum; None: all have. Pieces are of one size."""
    size = pieces.dtype.itemsize
    data = pieces.tobytes()
    if zlib.crc32(data) == combined(checksums, size):
        return None
    each = (zlib.crc32(data[at : at + size]) for at in range(0, len(data), size))
    found = np.fromiter(each, np.uint32, len(pieces)) != checksums
    return int(np.argmax(found)) if found.any() else None


def _followed_by(checksums: Checksums, size: int) -> Checksums:
    """What checksums contribute to that of their piece and `size` bytes behind it."""
    first, second, third, fourth = _tables(size)
    found: Checksums = (
        first[checksums & 0xFF]
        ^ second[(checksums >> 8) & 0xFF]
        ^ third[(checksums >> 16) & 0xFF]
        ^ fourth[checksums >> 24]
    )
    return found


@functools.lru_cache(maxsize=1024)
def _tables(size: int) -> npt.NDArray[np.uint32]:
    """The contribution of each byte of a checksum."""
    if size % 2 == 0:
        bits = _followed_by(_followed_by(_BITS, size // 2), size // 2)
    else:
        zeros = bytes(size)
        without = zlib.crc32(zeros)
        bits = np.array([zlib.crc32(zeros, bit) ^ without for bit in _BITS.tolist()], np.uint32)
    tables = np.zeros((4, 256), np.uint32)
    for bit in range(8):
        has_bit = np.arange(256) >> bit & 1 == 1
        tables[:, has_bit] ^= bits[bit::8][:, None]
    return tables
