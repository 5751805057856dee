"""One column of many rows, from text where it stands to an Arrow array. Pure.

Beside the array comes a mask of the values that its type cannot hold: they are NULL in the array,
and whoever asked decides what that means. `text.py` says the same one value at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.octets import Octets, Positions
from penstock.decode.text import Unrepresentable, Value, parse
from penstock.decode.types import Kind, ValueType

Mask: TypeAlias = npt.NDArray[np.bool_]

_INLINE = 12
# The first 0, 1, 2, 3 or 4 bytes of a word.
_LEADING = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint32)
_HEX = np.zeros(256, np.uint8)
_HEX[np.frombuffer(b"0123456789", np.uint8)] = np.arange(10)
_HEX[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)

_BACKSLASH, _DASH, _PLUS, _SPACE, _ZERO, _NINE = (ord(c) for c in "\\-+ 09")


@dataclass(frozen=True, slots=True)
class Texts:
    """Where each row's value stands; where `valid` is false there is none."""

    octets: Octets
    start: Positions
    length: Positions
    valid: Mask

    def __len__(self) -> int:
        return len(self.start)

    def at(self, offset: int | Positions) -> npt.NDArray[np.uint8]:
        """One byte of each value, counted from its start."""
        return self.octets.uint8(np.where(self.valid, self.start + offset, 0))

    def last(self, back: int = 1) -> npt.NDArray[np.uint8]:
        return self.at(np.maximum(self.length - back, 0))

    def where(self, mask: Mask) -> Texts:
        return Texts(self.octets, self.start, self.length, self.valid & mask)


def column(texts: Texts, kind: ValueType) -> tuple[pa.Array, Mask]:
    """The values, and which of them the type cannot hold."""
    match kind.kind:
        case Kind.TEXT:
            return _strings(texts)
        case Kind.BOOLEAN:
            return _array(pa.array(texts.at(0) == ord("t")), texts.valid), _nothing(texts)
        case Kind.BYTES:
            return _bytes(texts)
        case Kind.ARRAY:
            return _arrays(texts, kind)
    regular = _regular(texts, kind.kind)
    irregular = texts.valid & ~regular
    if kind.kind is Kind.TIMESTAMPTZ and irregular.any():
        # Perhaps only written with another offset than that of the session we ask for.
        return _one_by_one(texts, kind)
    try:
        return _views(texts.where(regular)).cast(pa.string()).cast(kind.arrow), irregular
    except pa.ArrowInvalid:  # whose text would show the value
        return _one_by_one(texts, kind)


def _regular(texts: Texts, kind: Kind) -> Mask:
    """Which values have the form that Arrow reads; the others are special."""
    match kind:
        case Kind.DECIMAL:
            first = texts.at(0)
            number = np.where(first == _DASH, texts.at(1), first)
            return _is_digit(number)
        case Kind.DATE:
            return np.asarray(texts.length == len("2000-01-01"), bool)
        case Kind.TIMESTAMP:
            return _four_digit_year(texts) & _is_digit(texts.last())
        case Kind.TIMESTAMPTZ:
            utc = (texts.last(3) == _PLUS) & (texts.last(2) == _ZERO) & (texts.last(1) == _ZERO)
            return np.asarray(_four_digit_year(texts) & utc, bool)
    return np.ones(len(texts), bool)


def _is_digit(octets: npt.NDArray[np.uint8]) -> Mask:
    return np.asarray((octets >= _ZERO) & (octets <= _NINE), bool)


def _four_digit_year(texts: Texts) -> Mask:
    return np.asarray((texts.at(4) == _DASH) & (texts.at(10) == _SPACE), bool)


def _strings(texts: Texts) -> tuple[pa.Array, Mask]:
    views = _views(texts)
    try:
        return views.cast(pa.string()), _nothing(texts)
    except pa.ArrowInvalid:  # text that is not UTF-8, from a database that does not check
        return _one_by_one(texts, ValueType(Kind.TEXT))


def _views(texts: Texts) -> pa.Array:
    """As Arrow's views: short values are copied, longer ones stay where they are."""
    length = np.where(texts.valid, texts.length, 0)
    start = np.where(texts.valid, texts.start, 0)
    short = length <= _INLINE
    views = np.empty((len(texts), 4), np.uint32)
    views[:, 0] = length
    views[:, 1] = texts.octets.word(start) & _LEADING[np.minimum(length, 4)]
    for field, long in ((2, 0), (3, start)):
        # A short value's next bytes; of a long one which buffer, and where.
        skip = 4 * (field - 1)
        words = texts.octets.word(np.where(short, start + skip, 0))
        words &= _LEADING[np.clip(length - skip, 0, 4)]
        views[:, field] = np.where(short, words, long)
    buffers = [_bitmap(texts.valid), pa.py_buffer(views), texts.octets.arrow]
    return pa.Array.from_buffers(pa.binary_view(), len(texts), buffers)


def _bytes(texts: Texts) -> tuple[pa.Array, Mask]:
    """`\\x` and two digits for each byte."""
    regular = (texts.length >= 2) & (texts.length % 2 == 0) & (texts.at(0) == _BACKSLASH)
    irregular = texts.valid & ~regular
    digits = Texts(texts.octets, texts.start + 2, texts.length - 2, texts.valid & regular)
    text = _views(digits).cast(pa.binary())
    validity, offsets, data = text.buffers()
    values = _HEX[np.frombuffer(data or b"", np.uint8)]
    octets = (values[0::2] << 4) | values[1::2]
    halved = np.frombuffer(offsets, np.int32)[: len(text) + 1] // 2
    buffers = [validity, pa.py_buffer(halved), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.binary(), len(text), buffers), irregular


def _arrays(texts: Texts, kind: ValueType) -> tuple[pa.Array, Mask]:
    """Elements between commas. With quotes, escapes or more dimensions, one by one."""
    assert kind.element is not None  # noqa: S101 - an array has one
    text = _views(texts).cast(pa.binary())
    plain = pc.match_substring_regex(text, rb"^\{[^{}\"\\]*\}$").fill_null(True)
    if not pc.all(plain, min_count=0).as_py():
        return _one_by_one(texts, kind)
    inner = Texts(texts.octets, texts.start + 1, texts.length - 2, texts.valid)
    parts = pc.split_pattern(_views(inner).cast(pa.binary()), b",")
    counts = np.where(texts.valid & (inner.length > 0), _lengths(parts), 0)
    # An empty array is split into one part too, which is empty; a real element never is.
    elements = parts.flatten()
    elements = elements.filter(pc.greater(pc.binary_length(elements), 0))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    values, bad = column(_texts_of(elements), kind.element)
    lists = pa.ListArray.from_arrays(pa.array(offsets), values, type=kind.arrow)
    if not bad.any():
        return _array(lists, texts.valid), _nothing(texts)
    irregular = np.add.reduceat(np.append(bad, False), offsets[:-1]) > 0
    irregular &= counts > 0
    return _array(lists, texts.valid & ~irregular), irregular


def _texts_of(elements: pa.Array) -> Texts:
    """The elements of arrays, where they now stand; a bare NULL is none."""
    _, offsets, data = elements.buffers()
    bounds = np.frombuffer(offsets, np.int32)[: len(elements) + 1].astype(np.int64)
    valid = np.asarray(pc.not_equal(elements, b"NULL"), bool)
    return Texts(Octets(data or b""), bounds[:-1], np.diff(bounds), valid)


def _lengths(lists: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.list_value_length(lists).fill_null(0), np.int64)


def _one_by_one(texts: Texts, kind: ValueType) -> tuple[pa.Array, Mask]:
    """As `text.py` says: for what is rare."""
    values: list[Value | None] = []
    bad = _nothing(texts)
    for row, (start, length, valid) in enumerate(
        zip(texts.start.tolist(), texts.length.tolist(), texts.valid.tolist(), strict=True)
    ):
        value: Value | None = None
        if valid:
            try:
                value = parse(texts.octets.slice(start, length), kind)
            except Unrepresentable:
                bad[row] = True
        values.append(value)
    return pa.array(values, kind.arrow), bad


def _array(array: pa.Array, valid: Mask) -> pa.Array:
    """The same values, NULL where they are not valid."""
    if valid.all():
        return array
    buffers: list[Any] = array.buffers()
    if isinstance(array, pa.ListArray):
        return pa.ListArray.from_buffers(
            array.type, len(array), [_bitmap(valid), buffers[1]], children=[array.values]
        )
    return pa.Array.from_buffers(array.type, len(array), [_bitmap(valid), *buffers[1:]])


def _bitmap(valid: Mask) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _nothing(texts: Texts) -> Mask:
    return np.zeros(len(texts), bool)
