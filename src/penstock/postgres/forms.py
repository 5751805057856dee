"""How values of the server's types become bytes that stand one behind the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from penstock.postgres.column_types import BaseType

# Values may be stored in a fraction of their size, or not in the page: what is packed is limited.
_MOST_OCTETS = 256
# As the log has it: a cast to text takes blanks off a char(n), and adds a mask to an inet.
PRINTED: LiteralString = "CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END"


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a column become bytes."""

    sql: LiteralString
    # For NumPy. None: they are texts in UTF-8, with a zero byte, which none has, in between.
    number: str | None = None
    # Whether that holds. None: they are small.
    fits: LiteralString | None = None


_NUMBERS = {
    "bool": Form("boolsend({})", "u1"),
    "int2": Form("int2send({})", ">i2"),
    "int4": Form("int4send({})", ">i4"),
    "int8": Form("int8send({})", ">i8"),
    "oid": Form("oidsend({})", ">u4"),
    "float4": Form("float4send({})", ">f4"),
    "float8": Form("float8send({})", ">f8"),
    # Days, and microseconds, since the year 2000.
    "date": Form("date_send({})", ">i4"),
    "timestamp": Form("timestamp_send({})", ">i8"),
    "timestamptz": Form("timestamptz_send({})", ">i8"),
}
_FITS: LiteralString = f"octet_length({{}}) <= {_MOST_OCTETS}"
_TEXTS = {
    "text": Form("textsend({})", fits=_FITS),
    "varchar": Form("varcharsend({})", fits=_FITS),
    "bpchar": Form("bpcharsend({})", fits=_FITS),
    "bytea": Form(f"textsend({PRINTED})", fits=_FITS),
}
_LABEL = Form("textsend({}::text)")
_SMALL_TEXT = Form(f"textsend({PRINTED})")
_SMALL_TEXTS = frozenset(
    "char name time timetz interval money macaddr macaddr8 inet cidr pg_lsn xid xid8 cid".split()
)


def form_of(base: BaseType) -> Form | None:
    """None: a value may be of any size, and how large it is shows only when it is printed."""
    if base.is_enum or (base.builtin and base.name == "uuid"):
        return _LABEL
    if not base.builtin:
        return None
    if base.name in _SMALL_TEXTS or base.limits:
        return _SMALL_TEXT
    return _NUMBERS.get(base.name) or _TEXTS.get(base.name)
