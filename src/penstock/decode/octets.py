"""Bytes that are read at many positions at once. Pure.

>>> octets = Octets(b"\\x00\\x00\\x01\\x00")
>>> octets.uint32(np.array([0])).tolist()
[256]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]

# Words are read where values stand, also at the very end.
_PADDING = bytes(16)


class Octets:
    """A buffer, and views of it as integers that begin at every byte."""

    def __init__(self, data: bytes | memoryview) -> None:
        padded = b"".join((data, _PADDING))
        self.arrow = pa.py_buffer(padded)
        self._bytes = np.frombuffer(padded, np.uint8)
        self._big16 = self._unaligned(padded, ">u2")
        self._big32 = self._unaligned(padded, ">u4")
        self._little32 = self._unaligned(padded, "<u4")

    @staticmethod
    def _unaligned(data: bytes, kind: str) -> npt.NDArray[np.uint32]:
        size = np.dtype(kind).itemsize
        return np.ndarray((len(data) - size + 1,), kind, data, strides=(1,))

    def uint8(self, at: Positions) -> npt.NDArray[np.uint8]:
        return self._bytes.take(at)

    def uint16(self, at: Positions) -> npt.NDArray[np.int64]:
        return self._big16.take(at).astype(np.int64)

    def uint32(self, at: Positions) -> npt.NDArray[np.int64]:
        return self._big32.take(at).astype(np.int64)

    def word(self, at: Positions) -> npt.NDArray[np.uint32]:
        """Four bytes as they stand, as Arrow keeps them."""
        return self._little32.take(at)

    def slice(self, start: int, length: int) -> bytes:
        return self._bytes[start : start + length].tobytes()
