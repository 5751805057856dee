"""One value from its text as Postgres prints it: the plain way, and the reference. Pure.

>>> parse(b"{1,NULL,3}", ValueType(Kind.ARRAY, element=ValueType(Kind.INTEGER)))
[1, None, 3]
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TypeAlias

from penstock.decode.types import Kind, ValueType

Value: TypeAlias = bool | int | float | Decimal | str | bytes | date | datetime | list["Value"]

_BITS = {Kind.SMALLINT: 16, Kind.INTEGER: 32, Kind.BIGINT: 64}
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
    r"(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?"
)
# The parts of an array's text: a quoted element, a bare one, or punctuation.
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)|([{},])', re.DOTALL)


class Unrepresentable(ValueError):
    """Postgres holds a value that the type outside cannot hold; the text says of which sort."""


def parse(text: bytes, kind: ValueType) -> Value:
    """Raises `Unrepresentable`."""
    try:
        return _parse(text.decode(), kind)
    except Unrepresentable:
        raise
    except (ValueError, ArithmeticError):  # whose text would show the value
        raise Unrepresentable(f"text that is not UTF-8, or not that of {kind}") from None


def _parse(text: str, kind: ValueType) -> Value:
    match kind.kind:
        case Kind.BOOLEAN:
            return text == "t"
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            number, limit = int(text), 2 ** (_BITS[kind.kind] - 1)
            if not -limit <= number < limit:
                raise Unrepresentable(f"a number beyond {kind}")
            return number
        case Kind.REAL:
            # With the digits of a real: the nearest one, not the nearest double.
            (value,) = struct.unpack("f", struct.pack("f", float(text)))
            return float(value)
        case Kind.DOUBLE:
            return float(text)
        case Kind.DECIMAL:
            return _decimal(text, kind)
        case Kind.TEXT:
            return text
        case Kind.BYTES:
            return bytes.fromhex(text.removeprefix("\\x"))
        case Kind.DATE:
            return _date(text)
        case Kind.TIMESTAMP:
            return _timestamp(text)
        case Kind.TIMESTAMPTZ:
            return _timestamp(text).astimezone(UTC)
        case Kind.ARRAY:
            assert kind.element is not None  # noqa: S101 - an array has one
            return [None if e is None else _parse(e, kind.element) for e in _elements(text)]  # type: ignore[misc]


def _decimal(text: str, kind: ValueType) -> Decimal:
    number = Decimal(text)
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise Unrepresentable("a numeric that is NaN or infinite")
    if exponent < -kind.scale or len(digits) + exponent > kind.precision - kind.scale:
        raise Unrepresentable(f"a number beyond {kind}")
    return number


def _date(text: str) -> date:
    found = _DATE.fullmatch(text)
    if found is None:
        raise Unrepresentable("a date that is infinite, BC or beyond the year 9999")
    return date(*map(int, found.groups()))


def _timestamp(text: str) -> datetime:
    found = _TIME.fullmatch(text)
    if found is None:
        raise Unrepresentable("a timestamp that is infinite, BC or beyond the year 9999")
    *moment, fraction, sign, hours, minutes, seconds = found.groups()
    year, month, day, hour, minute, second = map(int, moment)
    micros = int((fraction or "").ljust(6, "0"))
    zone = None
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
        zone = timezone(-offset if sign == "-" else offset)
    return datetime(year, month, day, hour, minute, second, micros, zone)


def _elements(text: str) -> Iterator[str | None]:
    """Of an array with one dimension that starts at 1, or of an empty one."""
    if text.startswith("["):
        raise Unrepresentable("an array that does not start at 1")
    depth = 0
    for quoted, bare, mark in _TOKEN.findall(text):
        if mark == "{":
            depth += 1
            if depth > 1:
                raise Unrepresentable("an array of several dimensions")
        elif bare:
            yield None if bare == "NULL" else bare
        elif not mark:
            yield _unescaped(quoted)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
