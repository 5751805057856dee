"""Compression of a frame's messages. Pure."""

from __future__ import annotations

import functools
from typing import Any

from penstock.changelog.format import Compression


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
