"""Names of tables and columns, as people write them and as SQL needs them. A shared word."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

_PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)'
# Of one name; the server cuts off the rest.
MAX_BYTES = 63
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")
# PostgreSQL leaves letters beyond ASCII as they are, at least in a database of UTF-8.
_FOLD = {ord(letter): letter.lower() for letter in string.ascii_uppercase}


def quote(identifier: str) -> str:
    """Quote an identifier for SQL, only where SQL needs it.

    >>> quote("notifications"), quote("Weird name")
    ('notifications', '"Weird name"')
    """
    if re.fullmatch(r"[a-z_][a-z0-9_]*", identifier) and identifier not in _RESERVED:
        return identifier
    return '"' + identifier.replace('"', '""') + '"'


def fitted_name(start: str, suffix: str) -> str:
    """A name made of two, of at most as many bytes as the server keeps of one.

    >>> fitted_name("orders", "_key"), len(fitted_name("ü" * 63, "_key").encode())
    ('orders_key', 62)
    """
    return start.encode()[: MAX_BYTES - len(suffix)].decode(errors="ignore") + suffix


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table by schema and name, unquoted.

    >>> TableName.parse("notifications")
    TableName(schema='public', name='notifications')
    >>> TableName.parse('app."Order Lines"').sql
    'app."Order Lines"'
    """

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `table`, `schema.table` or their quoted forms, with SQL's folding to lower case."""
        match = _TABLE.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a table name such as public.notifications")
        return cls(_unquote(match[1]) if match[1] else "public", _unquote(match[2]))

    @property
    def sql(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    def __str__(self) -> str:
        return self.sql


def column_name(text: str) -> str:
    """Read a column's name, as people write it.

    >>> column_name("ID"), column_name('"ID"')
    ('id', 'ID')
    """
    if re.fullmatch(_PART, text.strip()) is None:
        raise ValueError(f"{text!r} is not a column name such as id")
    return _unquote(text.strip())


def split_names(text: str) -> list[str]:
    """A list of names between commas, which may stand in quoted names too.

    >>> split_names('id, "a, b" ,public.t')
    ['id', '"a, b"', 'public.t']
    """
    names = [
        name.strip() for name in re.findall(r'((?:"(?:[^"]|"")*"|[^,])*)(?:,|$)', text + ",")[:-1]
    ]
    if not all(names):
        raise ValueError("a name in the list is empty")
    return names


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.translate(_FOLD)


# PostgreSQL's reserved words (pg_get_keywords, catcode R and T): as names they need quotes.
_RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check
    collate collation column concurrently constraint create cross current_catalog current_date
    current_role current_schema current_time current_timestamp current_user default deferrable
    desc distinct do else end except false fetch for foreign freeze from full grant group having
    ilike in initially inner intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps
    placing primary references returning right select session_user similar some symmetric
    system_user table tablesample then to trailing true union unique user using variadic verbose
    when where window with
    """.split()
)
