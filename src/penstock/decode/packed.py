"""One column of many rows, from packed values to an Arrow array. Pure.

As `columns.py` for texts of the log, and with the same result: beside the array comes a mask of the
values that its type cannot hold, which are NULL in it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.runs import PADDING
from penstock.decode.columns import Mask, Texts, column
from penstock.decode.octets import Octets
from penstock.decode.types import Kind, ValueType
from penstock.postgres.packing import Packed

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# As Postgres counts them, and within what Spark and Python know: the years 1 to 9999.
_DAYS = ((date.min - _EPOCH.date()).days, (date.max - _EPOCH.date()).days)
_MICROS = (
    (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
    (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
)
_LIMITS = {Kind.DATE: _DAYS, Kind.TIMESTAMP: _MICROS, Kind.TIMESTAMPTZ: _MICROS}
# From then on Arrow counts.
_SHIFT = {
    Kind.DATE: (_EPOCH - _UNIX).days,
    Kind.TIMESTAMP: (_EPOCH - _UNIX) // _MICROSECOND,
    Kind.TIMESTAMPTZ: (_EPOCH - _UNIX) // _MICROSECOND,
}


def packed_column(packed: Packed, kind: ValueType, rows: int) -> tuple[pa.Array, Mask]:
    """The values, and which of them the type cannot hold."""
    valid = np.ones(rows, bool)
    if packed.valid is not None:
        valid = np.frombuffer(packed.valid, bool)
    number = packed.form.number
    if number is not None:
        values = np.frombuffer(packed.data, number)
        _check(packed, len(values), valid)
        return _numbers(_spread(values, valid), valid, kind)
    octets = np.frombuffer(packed.data, np.uint8)
    ends = np.flatnonzero(octets == 0)
    if packed.count:
        ends = np.append(ends, len(octets))
    _check(packed, len(ends), valid)
    if kind.kind is Kind.TEXT:
        try:
            return _strings(octets, ends, valid), np.zeros(rows, bool)
        except pa.ArrowInvalid:
            pass  # not UTF-8, from a database that does not check: `column` says which
    starts = np.concatenate(([0], ends[:-1] + 1))[: len(ends)]
    padded, lengths = Octets(packed.data + PADDING), _spread(ends - starts, valid)
    return column(Texts(padded, _spread(starts, valid), lengths, valid), kind)


def _check(packed: Packed, found: int, valid: Mask) -> None:
    """One value less or more, and all behind it would be those of another row."""
    if not packed.count == found == np.count_nonzero(valid):
        raise RuntimeError(f"of {packed.count} values in {len(valid)} rows the server sent {found}")


def _spread(values: npt.NDArray[Any], valid: Mask) -> npt.NDArray[Any]:
    """To the rows that have one; 0 in the others."""
    if len(values) == len(valid):
        return values
    spread = np.zeros(len(valid), values.dtype)
    spread[valid] = values
    return spread


def _numbers(values: npt.NDArray[Any], valid: Mask, kind: ValueType) -> tuple[pa.Array, Mask]:
    bad = np.zeros(len(values), bool)
    if kind.kind in _LIMITS:
        first, last = _LIMITS[kind.kind]
        bad = (values < first) | (values > last)
        values = np.where(bad, 0, values).astype(np.int64) + _SHIFT[kind.kind]
    elif kind.kind is Kind.BOOLEAN:
        values = values.astype(bool)
    good = valid & ~bad
    native = values.astype(values.dtype.newbyteorder("="))
    array = pa.array(native, mask=None if good.all() else ~good)
    return (array.cast(pa.int32()) if kind.kind is Kind.DATE else array).cast(kind.arrow), bad


def _strings(octets: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], valid: Mask) -> pa.Array:
    """Without what is in between, which is what Arrow has."""
    offsets = np.zeros(len(valid) + 1, np.int32)
    # Behind the last value before a row.
    before = np.cumsum(valid)
    offsets[1:] = np.concatenate(([0], ends - np.arange(len(ends))))[before]
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(octets[octets != 0])]
    return pa.Array.from_buffers(pa.binary(), len(valid), buffers).cast(pa.string())
