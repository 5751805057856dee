"""What stands behind a change's own columns: what it is, and where in the log it belongs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.runs import BatchRange, Run
from penstock.decode.columns import Mask
from penstock.decode.octets import Positions
from penstock.errors import TableTruncated
from penstock.lsn import Lsn
from penstock.names import TableName

# Microseconds from 1970 to 2000, where Postgres counts from.
_EPOCH_US = 946_684_800_000_000
_NAMES = pa.list_(pa.field("element", pa.string()))
_TIME = pa.timestamp("us", "UTC")

# Name without its prefix, type, whether it may be NULL.
METADATA: tuple[tuple[str, pa.DataType, bool], ...] = (
    ("change_type", pa.string(), False),
    ("commit_version", pa.int64(), False),
    ("commit_timestamp", _TIME, True),
    ("seq", pa.int64(), False),
    ("xid", pa.int64(), False),
    ("unchanged", _NAMES, False),
    ("absent", _NAMES, False),
)


def schema(columns: Sequence[pa.Field], prefix: str) -> pa.Schema:
    return pa.schema(
        [*columns, *(pa.field(prefix + name, kind, null) for name, kind, null in METADATA)]
    )


def metadata(
    run: Run,
    message: Positions,
    change_type: pa.Array,
    unchanged: Mapping[str, Mask],
    absent: Mapping[str, Mask],
) -> list[pa.Array]:
    """Of rows that are about these messages of a run."""
    time_us = run.commit_us[message]
    # A transaction that was replicated from elsewhere may have committed at `infinity`.
    finite = np.abs(time_us) < np.iinfo(np.int64).max - _EPOCH_US
    return [
        change_type,
        pa.array(run.commit_lsn[message].astype(np.int64)),
        pa.array(np.where(finite, time_us, 0) + _EPOCH_US, _TIME, mask=~finite),
        pa.array(run.seq[message]),
        pa.array(run.xid[message]),
        _names(len(message), unchanged),
        _names(len(message), absent),
    ]


def range_row(schema: pa.Schema, prefix: str, covered: BatchRange) -> pa.RecordBatch:
    """A row that says which range a batch covers: NULL in all columns but those that say so."""
    values: Mapping[str, Any] = {
        f"{prefix}change_type": "batch_range",
        f"{prefix}commit_version": int(covered.up_to),
        f"{prefix}seq": int(covered.after),
        f"{prefix}xid": 0,
        f"{prefix}unchanged": [],
        f"{prefix}absent": [],
    }
    columns = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def words(codes: npt.NDArray[Any], choice: Sequence[str]) -> pa.Array:
    """A word for each code."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), list(choice)).cast(pa.string())


def truncated(run: Run, message: int, table: TableName) -> TableTruncated:
    lsn = Lsn(int(run.commit_lsn[message]))
    return TableTruncated(
        f"{table} was truncated at {lsn}",
        remedy="Set onTruncate to emit, which gives a row of its own, or to skip",
        lsn=lsn,
    )


def in_order(
    schema: pa.Schema, parts: Sequence[tuple[Positions, list[pa.Array]]]
) -> pa.RecordBatch:
    """Parts of one run, their rows put into the order of its messages."""
    if not parts:
        return pa.RecordBatch.from_arrays(
            [pa.array([], kind) for kind in schema.types], schema=schema
        )
    if len(parts) == 1:
        return pa.RecordBatch.from_arrays(parts[0][1], schema=schema)
    columns = [pa.concat_arrays(column) for column in zip(*(p for _, p in parts), strict=True)]
    order = np.argsort(np.concatenate([message for message, _ in parts]), kind="stable")
    return pa.RecordBatch.from_arrays(columns, schema=schema).take(pa.array(order))


def _names(rows: int, masks: Mapping[str, Mask]) -> pa.Array:
    """For each row, the names of the columns whose mask is set."""
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    offsets = np.zeros(rows + 1, np.int32)
    if not masks:
        values = pa.array([], pa.string())
    elif _all_equal(list(masks.values())):
        # The common case: in these rows only the identity is known.
        mask = next(iter(masks.values()))
        np.cumsum(mask * len(masks), out=offsets[1:], dtype=np.int32)
        values = _repeated(list(masks), int(np.count_nonzero(mask)))
    else:
        row, which = np.nonzero(np.column_stack(list(masks.values())))
        np.cumsum(np.bincount(row, minlength=rows), out=offsets[1:])
        values = pa.array(list(masks), pa.string()).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=_NAMES)


def _all_equal(masks: Sequence[Mask]) -> bool:
    return all(np.array_equal(masks[0], mask) for mask in masks[1:])


def _repeated(names: Sequence[str], times: int) -> pa.Array:
    """All names, so many times over."""
    words = [name.encode() for name in names]
    once = b"".join(words)
    ends = np.cumsum([len(word) for word in words])
    offsets = np.zeros(times * len(words) + 1, np.int32)
    offsets[1:] = np.add.outer(np.arange(times) * len(once), ends).ravel()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(once * times)]
    return pa.Array.from_buffers(pa.string(), times * len(words), buffers)
