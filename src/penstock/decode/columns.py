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

from penstock.changelog.runs import PADDING
from penstock.decode.octets import Octets, Positions
from penstock.decode.text import Unrepresentable, Value, parse
from penstock.decode.types import Kind, ValueType

Mask: TypeAlias = npt.NDArray[np.bool_]

_INLINE = 12
# Beyond it a copy costs more than what it saves.
_MOST_GATHERED = 64
# The first 0, 1, 2, … 12 bytes of three words.
_LEADING = np.tril(np.full((_INLINE + 1, _INLINE), 0xFF, np.uint8), -1).view(np.uint32)
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
        return _binary(texts.where(regular)).cast(pa.string()).cast(kind.arrow), irregular
    except pa.ArrowInvalid:  # whose text would show the value
        return _one_by_one(texts, kind)


def column_as(texts: Texts, given: ValueType, wanted: ValueType) -> tuple[pa.Array, Mask]:
    """As `column`, of a column of type `given` that is wanted as another, which holds it."""
    reading = wanted.reading(given)
    array, bad = column(texts, reading)
    return array if reading == wanted else array.cast(wanted.arrow), bad


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
    try:
        return _binary(texts).cast(pa.string()), _nothing(texts)
    except pa.ArrowInvalid:  # text that is not UTF-8, from a database that does not check
        return _one_by_one(texts, ValueType(Kind.TEXT))


def _binary(texts: Texts) -> pa.Array:
    """The values, one behind the other."""
    valid = texts.valid
    if valid.all():
        return _packed(texts.octets, texts.start, texts.length)
    packed = _packed(texts.octets, texts.start[valid], texts.length[valid])
    _, bounds, data = packed.buffers()
    # A row without a value begins where the next one does.
    ends = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(valid, out=ends[1:])
    offsets = np.frombuffer(bounds, np.int32)[ends] if len(packed) else ends.astype(np.int32)
    buffers = [_bitmap(valid), pa.py_buffer(offsets), data or pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def _packed(octets: Octets, start: Positions, length: Positions) -> pa.Array:
    size = int(length[0]) if len(length) else 0
    if not 0 < size <= _MOST_GATHERED or not (length == size).all():
        return _views(octets, start, length).cast(pa.binary())
    # All of one length: identifiers, moments, many numbers.
    offsets = np.arange(len(length) + 1, dtype=np.int32) * np.int32(size)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(octets.gathered(start, size))]
    return pa.Array.from_buffers(pa.binary(), len(length), buffers)


def _views(octets: Octets, start: Positions, length: Positions) -> pa.Array:
    """As Arrow's views: short values are copied, longer ones stay where they are."""
    short = length <= _INLINE
    views = np.empty((len(length), 4), np.uint32)
    views[:, 0] = length
    # A short value's bytes; of a long one the first four, which buffer, and where.
    views[:, 1:] = octets.three_words(start) & _LEADING[np.minimum(length, _INLINE)]
    if not short.all():
        views[~short, 2] = 0
        views[~short, 3] = start[~short]
    buffers = [None, pa.py_buffer(views), octets.arrow]
    return pa.Array.from_buffers(pa.binary_view(), len(length), buffers)


def _bytes(texts: Texts) -> tuple[pa.Array, Mask]:
    """`\\x` and two digits for each byte."""
    regular = (texts.length >= 2) & (texts.length % 2 == 0) & (texts.at(0) == _BACKSLASH)
    irregular = texts.valid & ~regular
    digits = Texts(texts.octets, texts.start + 2, texts.length - 2, texts.valid & regular)
    text = _binary(digits)
    validity, offsets, data = text.buffers()
    values = _HEX[np.frombuffer(data or b"", np.uint8)]
    octets = (values[0::2] << 4) | values[1::2]
    halved = np.frombuffer(offsets, np.int32)[: len(text) + 1] // 2
    buffers = [validity, pa.py_buffer(halved), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.binary(), len(text), buffers), irregular


def _arrays(texts: Texts, kind: ValueType) -> tuple[pa.Array, Mask]:
    """Elements between commas. With quotes, escapes or more dimensions, one by one."""
    assert kind.element is not None  # noqa: S101 - an array has one
    text = _binary(texts)
    plain = pc.match_substring_regex(text, rb"^\{[^{}\"\\]*\}$").fill_null(True)
    if not pc.all(plain, min_count=0).as_py():
        return _one_by_one(texts, kind)
    inner = Texts(texts.octets, texts.start + 1, texts.length - 2, texts.valid)
    parts = pc.split_pattern(_binary(inner), b",")
    counts = np.where(texts.valid & (inner.length > 0), _lengths(parts), 0)
    # An empty array is split into one part too, which is empty; a real element never is.
    elements = parts.flatten()
    elements = elements.filter(pc.greater(pc.binary_length(elements), 0))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    # A bare NULL is none.
    texts_of_elements = texts_of(elements).where(np.asarray(pc.not_equal(elements, b"NULL"), bool))
    values, bad = column(texts_of_elements, kind.element)
    lists = pa.ListArray.from_arrays(pa.array(offsets), values, type=kind.arrow)
    if not bad.any():
        return _array(lists, texts.valid), _nothing(texts)
    irregular = np.add.reduceat(np.append(bad, False), offsets[:-1]) > 0
    irregular &= counts > 0
    return _array(lists, texts.valid & ~irregular), irregular


def texts_of(array: pa.Array) -> Texts:
    """The values of an array of text or bytes, where they stand."""
    _, offsets, data = array.buffers()
    ours = slice(array.offset, array.offset + len(array) + 1)
    bounds = np.frombuffer(offsets, np.int32)[ours].astype(np.int64)
    valid = np.asarray(array.is_valid(), bool)
    return Texts(Octets(b"".join((data or b"", PADDING))), bounds[:-1], np.diff(bounds), valid)


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
