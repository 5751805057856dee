"""Packed values: what cannot be told apart from another row's values is not accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.decode.packed import packed_column
from penstock.decode.types import Kind, ValueType
from penstock.postgres.forms import Form
from penstock.postgres.packing import Packed

TEXT, NUMBER = Form("textsend({})"), Form("int4send({})", ">i4")


def column(
    form: Form, kind: Kind, data: bytes, count: int, valid: bytes | None, rows: int
) -> list[Any]:
    array, bad = packed_column(Packed(form, data, count, valid), ValueType(kind), rows)
    array.validate(full=True)
    assert not bad.any()
    found: list[Any] = array.to_pylist()
    return found


def test_texts_stand_between_zero_bytes() -> None:  # M5.5
    cases: list[tuple[bytes, int, bytes | None, list[str | None]]] = [
        (b"a\0\0bc", 3, None, ["a", "", "bc"]),
        (b"", 1, None, [""]),
        (b"\0", 2, None, ["", ""]),
        (b"", 0, b"\0\0", [None, None]),
        (b"a\0b", 2, b"\1\0\1\0", ["a", None, "b", None]),
        (b"", 1, b"\0\1", [None, ""]),
        (b"", 0, None, []),
    ]
    for data, count, valid, expected in cases:
        assert column(TEXT, Kind.TEXT, data, count, valid, len(expected)) == expected


def test_numbers_are_spread_over_the_rows_that_have_one() -> None:  # M5.5
    data = np.array([1, -1], ">i4").tobytes()
    assert column(NUMBER, Kind.INTEGER, data, 2, None, 2) == [1, -1]
    assert column(NUMBER, Kind.INTEGER, data, 2, b"\0\1\0\1", 4) == [None, 1, None, -1]


@pytest.mark.parametrize(
    ("form", "kind", "data", "count", "valid", "rows"),
    [
        (TEXT, Kind.TEXT, b"a\0b", 3, None, 3),
        (TEXT, Kind.TEXT, b"a\0b\0c", 2, None, 2),
        (TEXT, Kind.TEXT, b"a\0b", 2, None, 3),
        (TEXT, Kind.TEXT, b"a\0b", 2, b"\1\0\0", 3),
        (NUMBER, Kind.INTEGER, bytes(8), 1, None, 1),
        (NUMBER, Kind.INTEGER, bytes(8), 2, b"\1\1\1", 3),
    ],
)
def test_a_value_more_or_less_is_not_accepted(  # M4.6: nothing becomes a wrong value in silence
    form: Form, kind: Kind, data: bytes, count: int, valid: bytes | None, rows: int
) -> None:
    with pytest.raises(RuntimeError, match=rf"of {count} values in {rows} rows"):
        column(form, kind, data, count, valid, rows)


def test_text_that_is_not_utf_8_has_no_place() -> None:  # M4.6
    array, bad = packed_column(Packed(TEXT, b"a\0\xff\0b", 3, None), ValueType(Kind.TEXT), 3)
    assert array.to_pylist() == ["a", None, "b"]
    assert bad.tolist() == [False, True, False]
