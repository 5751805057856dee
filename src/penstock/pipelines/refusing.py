"""Which errors mean that a target refuses a key, and what is told of them. Pure.

Beside `passing`: what passes by itself is no refusal, and what a person must mend for all keys,
such as a privilege or a table that is missing, is neither.
"""

from __future__ import annotations

import psycopg

from penstock.pipelines.passing import passes

# By class or code: values, constraints, checks of views. A key may be too long for the index that
# it needs (54000). The others are what functions of the user's raise by themselves: triggers, CASE
# without a branch, subqueries with several rows, other languages, and all of PL/pgSQL's own.
_REFUSING = ("22", "23", "44", "54000", "09", "20", "21", "27", "38", "P0")


def refuses(error: psycopg.Error) -> bool:
    if passes(error):
        return False
    if error.sqlstate is None:  # it did not come from the server
        return isinstance(error, psycopg.DataError)
    # A trigger may raise a code of its user's choice.
    return error.sqlstate.startswith(_REFUSING) or not _is_known(error.sqlstate)


def reason(error: psycopg.Error) -> str:
    """Without the server's text, which quotes values."""
    kind = type(error).__name__
    if error.sqlstate is not None and not _is_known(error.sqlstate):
        kind = f"SQLSTATE {error.sqlstate}"
    return f"{kind}: {error.diag.constraint_name}" if error.diag.constraint_name else kind


def _is_known(sqlstate: str) -> bool:
    try:
        psycopg.errors.lookup(sqlstate)
    except KeyError:
        return False
    return True
