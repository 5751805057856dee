"""Compression of a frame's messages. Pure."""

from __future__ import annotations

import functools
from typing import Any

from penstock.changelog.format import Compression

# Less than this is a row or two, which get hardly smaller and would cost each reader a call.
_WORTHWHILE_BYTES = 512


def compress_if_smaller(data: bytes, kind: Compression) -> tuple[bytes, Compression]:
    """Return the data as it is to be stored, and how it is compressed."""
    if kind is not Compression.NONE and len(data) >= _WORTHWHILE_BYTES:
        compressed = compress(data, kind)
        if len(compressed) < len(data):
            return compressed, kind
    return data, Compression.NONE


def compress(data: bytes, kind: Compression) -> bytes:
    if kind is Compression.NONE:
        return data
    return bytes(_codec(kind).compress(data, asbytes=True))


def decompress(data: bytes | memoryview, kind: Compression, raw_size: int) -> bytes | memoryview:
    if kind is Compression.NONE:
        return data
    return memoryview(_codec(kind).decompress(data, decompressed_size=raw_size))


@functools.cache
def _codec(kind: Compression) -> Any:
    # Arrow is large, and a log without compression does not need it.
    import pyarrow as pa

    return pa.Codec({Compression.LZ4: "lz4_raw", Compression.ZSTD: "zstd"}[kind])
