"""Spark SQL expressions as the configuration holds them: which columns they read, and what is wrong
with them. Pure; Spark itself has the last word when a pipeline starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# Their value is another one when the same change is read again, or on another machine.
_UNSTABLE = frozenset(
    """
    rand random randn randstr uuid uniform shuffle monotonically_increasing_id spark_partition_id
    now current_date current_timestamp current_time curdate localtimestamp current_timezone
    current_user session_user user current_database current_schema current_catalog
    version input_file_name input_file_block_start input_file_block_length reflect java_method
    """.split()
)
# sqlglot's own names of some of them.
_UNSTABLE_NODES = (
    exp.Rand,
    exp.Randn,
    exp.Uuid,
    exp.CurrentDate,
    exp.CurrentTimestamp,
    exp.CurrentTime,
    exp.CurrentDatetime,
    exp.CurrentUser,
)
# In Spark, texts that mean the present moment where they are made a date or a time.
_PRESENT = re.compile(r"\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_MANY_ROWS = (exp.AggFunc, exp.Window, exp.Query, exp.Subquery, exp.Star)


class BadExpression(ValueError):
    """The text says what is wrong, in words that go behind the place where it stands."""


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that an expression reads, in order. Raises `BadExpression`.

    >>> columns_of("to_date(from_utc_timestamp(created_at, 'Europe/London'))")
    ('created_at',)
    >>> columns_of("`Weird name`")
    ('Weird name',)
    """
    tree = _parsed(text)
    for node in tree.walk():
        if isinstance(node, _MANY_ROWS):
            raise BadExpression("is about several rows; it should be about the values of one row")
        if isinstance(node, _UNSTABLE_NODES) or _name(node) in _UNSTABLE:
            raise BadExpression(
                f"uses {_name(node)}, which gives another value each time: a change that is read "
                "again must count the same"
            )
        if isinstance(node, exp.Cast) and node.this.is_string and _PRESENT.match(node.this.name):
            raise BadExpression(
                f"uses {node.to.sql('spark').lower()} '{node.this.name}', which is another one "
                "each day: a change that is read again must count the same"
            )
    columns = list(tree.find_all(exp.Column))
    if any(column.table for column in columns):
        raise BadExpression("should name a column without its table")
    names = [column.name for column in columns]
    return tuple(dict.fromkeys(sorted(names, key=text.find)))


def plain_column(text: str) -> str | None:
    """The column, if the expression is nothing but one.

    >>> plain_column("status"), plain_column("upper(status)")
    ('status', None)
    """
    tree = _parsed(text)
    return tree.name if isinstance(tree, exp.Column) else None


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The expression over columns of other names; a column that is not among them is an error.

    >>> renamed("upper(status) || `Weird name`", {"status": "s t", "Weird name": "w"})
    'upper(`s t`) || `w`'
    """
    found = [column.this for column in _parsed(text).find_all(exp.Column)]
    for identifier in sorted(found, key=lambda each: -each.meta["start"]):
        start, end = identifier.meta["start"], identifier.meta["end"] + 1
        text = text[:start] + quoted(names[identifier.name]) + text[end:]
    return text


def in_brackets(text: str) -> str:
    """On lines of its own: it may end with a comment, which goes to the end of its line.

    >>> in_brackets("status -- of delivery")
    '(status -- of delivery\\n)'
    """
    return f"({text}\n)"


def quoted(name: str) -> str:
    """As a name of Spark SQL.

    >>> quoted("a`b c")
    '`a``b c`'
    """
    return "`" + name.replace("`", "``") + "`"


# As SQL's own quotes are not for names here.
_BACKTICKS = "; a column whose name is more than one word stands in backticks: `Two words`"


def _parsed(text: str) -> exp.Expression:
    try:
        trees = sqlglot.parse(text, read="spark")
        ended = any(
            each.text == ";" and each.token_type.name == "SEMICOLON"
            for each in sqlglot.tokenize(text, "spark")
        )
    except SqlglotError:
        raise _own_word(text) or BadExpression("is not an expression of Spark SQL") from None
    tree = trees[0] if len(trees) == 1 and not ended else None
    if isinstance(tree, exp.Query) and (own := _own_word(text)):
        raise own
    if not isinstance(tree, exp.Expression) or isinstance(tree, exp.Alias):
        raise BadExpression(f"should be one expression of Spark SQL{_BACKTICKS}")
    if isinstance(tree, exp.Literal) and text.strip().startswith('"'):
        raise BadExpression(f"is a text to Spark, not a column{_BACKTICKS}")
    return tree


def _own_word(text: str) -> BadExpression | None:
    """Of `select` or `case` by itself, which may well be a column's name."""
    word = text.strip()
    if not word.isidentifier():
        return None
    return BadExpression(f"is a word of SQL; a column of that name stands in backticks: `{word}`")


def _name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""
