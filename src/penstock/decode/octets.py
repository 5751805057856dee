"""Bytes that are read at many positions at once. Pure.

>>> octets = Octets(b"\\x00\\x00\\x01\\x00" + bytes(64))
>>> octets.uint32(np.array([0])).tolist()
[256]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]


class Octets:
    """A buffer that ends with `PADDING`, and views of it as integers that begin at every byte."""

    def __init__(self, padded: bytes) -> None:
        self._data = padded
        self.arrow = pa.py_buffer(padded)
        self._bytes = np.frombuffer(padded, np.uint8)
        self._big16 = self._everywhere(">u2")
        self._big32 = self._everywhere(">u4")
        self._three = self._everywhere("V12")

    def _everywhere(self, kind: str) -> npt.NDArray[Any]:
        # To be indexed, not for `take`: that would first copy all of it.
        size = np.dtype(kind).itemsize
        return np.ndarray((len(self._data) - size + 1,), kind, self._data, strides=(1,))

    def uint8(self, at: Positions) -> npt.NDArray[np.uint8]:
        return self._bytes.take(at)

    def uint16(self, at: Positions) -> npt.NDArray[np.int64]:
        return self._big16[at].astype(np.int64)

    def uint32(self, at: Positions) -> npt.NDArray[np.int64]:
        return self._big32[at].astype(np.int64)

    def three_words(self, at: Positions) -> npt.NDArray[np.uint32]:
        """Twelve bytes as they stand, three words in a row of an array."""
        return self._three[at].view(np.uint32).reshape(-1, 3)

    def gathered(self, at: Positions, size: int) -> npt.NDArray[Any]:
        """`size` bytes from each position, one after the other."""
        return self._everywhere(f"V{size}")[at]

    def slice(self, start: int, length: int) -> bytes:
        return self._bytes[start : start + length].tobytes()
