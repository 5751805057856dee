"""What a role with CREATE on `public` can plant there: functions and operators that fit a call
better than those of `pg_catalog` do, so that a session with `public` in its path runs them.

Each of them warns, which is in the server's log whatever becomes of its transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import psycopg

import penstock
from support.database import Database

ROLE = "mallory"
_SOURCE = Path(penstock.__file__).parent
_TYPES = (
    *("text", "name", "character varying", '"char"', "integer", "bigint", "smallint", "numeric"),
    *("oid", "boolean", "timestamp with time zone", "interval", "pg_lsn", "xid", "regclass"),
    *("regtype", "jsonb", "uuid", "date", "double precision"),
    *("text[]", "name[]", "oid[]", "smallint[]", "integer[]"),
)
_ANY = ("anyelement", "anynonarray", "anycompatible", "anycompatiblenonarray", '"any"')
_ANY_ARRAY = ("anyarray", "anycompatiblearray")
_TESTS = ("=", "<>", "<", "<=", ">", ">=", "~", "!~", "~~", "!~~", "~*", "@>", "<@", "&&")
_OPERATORS = (*_TESTS, "||", "+", "-", "*", "/", "%", "->", "->>")
_STATEMENTS_AT_ONCE = 500


def plant(database: Database) -> str:
    """Plant as an unprivileged role; returns the words of the warnings. All goes with the database,
    but for the role.
    """
    words = f"hostile in {database.name}"
    with suppress(psycopg.errors.DuplicateObject):
        database.run(f"CREATE ROLE {ROLE} LOGIN")
    database.run(f"GRANT CREATE ON SCHEMA public TO {ROLE}")
    with database.connect(user=ROLE) as connection:
        connection.execute("SET search_path = pg_catalog")
        statements = [*_functions(connection, words), *_operators(connection, words)]
        for start in range(0, len(statements), _STATEMENTS_AT_ONCE):
            some = statements[start : start + _STATEMENTS_AT_ONCE]
            connection.execute(";".join(some).encode())
    return words


def names_called() -> set[str]:
    """Every name in our source that a bracket follows, among them each function that we call."""
    found: set[str] = set()
    for file in _SOURCE.rglob("*"):
        if file.suffix in (".py", ".sql"):
            found |= set(re.findall(r"\b([a-z_][a-z0-9_]*)\s*\(", file.read_text()))
    return found


def _functions(connection: psycopg.Connection, words: str) -> Iterator[str]:
    rows = connection.execute(_CALLED, [sorted(names_called())]).fetchall()
    taken = {(name, tuple(types)) for name, types, _, _ in rows}
    casts: dict[str, list[str]] = {}
    for source, target in connection.execute(_IMPLICIT_CASTS):
        casts.setdefault(target, []).append(source)
    for name, types, defaults, variadic in rows:
        for size in range(max(1, len(types) - defaults), len(types) + 1):
            for signature in _better(tuple(types[:size]), variadic, casts):
                if (name, signature) not in taken:
                    taken.add((name, signature))
                    yield _function(f'"{name}"', signature, "text", words)


def _better(
    types: tuple[str, ...], variadic: bool, casts: dict[str, list[str]]
) -> Iterator[tuple[str, ...]]:
    """Signatures that some call of such a function fits at least as well."""
    if {*types} & {*_ANY, *_ANY_ARRAY}:
        for one in _TYPES:
            array = one if one.endswith("[]") else f"{one}[]"
            concrete = tuple(
                one if each in _ANY else array if each in _ANY_ARRAY else each for each in types
            )
            for more in range(3 if variadic else 1):
                yield (*concrete, *[one] * more)
        return
    for place, each in enumerate(types):
        for source in casts.get(each, ()):
            yield (*types[:place], source, *types[place + 1 :])
    # A literal without a type is taken for text first.
    yield tuple("text" if "text" in casts.get(each, ()) else each for each in types)


def _operators(connection: psycopg.Connection, words: str) -> Iterator[str]:
    taken = {*connection.execute(_OPERATORS_THERE, [list(_OPERATORS)])}
    for left, right in product(_TYPES, repeat=2):
        for kind, returned in (("test", "boolean"), ("value", "text")):
            yield _function(f"hostile_{kind}", (left, right), returned, words)
    for operator, left, right in product(_OPERATORS, _TYPES, _TYPES):
        if (operator, left, right) not in taken:
            kind = "test" if operator in _TESTS else "value"
            yield (
                f"CREATE OPERATOR public.{operator} (LEFTARG = {left}, RIGHTARG = {right},"
                f" FUNCTION = public.hostile_{kind})"
            )


def _function(name: str, types: tuple[str, ...], returned: str, words: str) -> str:
    said = f"{words}: {name}({', '.join(types)})"
    return (
        f"CREATE FUNCTION public.{name} ({', '.join(types)}) RETURNS {returned} LANGUAGE plpgsql"
        f" AS $hostile$BEGIN RAISE WARNING '{said}'; RETURN NULL; END$hostile$"
    )


_CALLED = """
SELECT proname::text, proargtypes::oid[]::regtype[]::text[], pronargdefaults, provariadic <> 0
  FROM pg_proc
 WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY (%s)
   AND pronargs > 0 AND prokind <> 'p'
   AND NOT proargtypes::oid[] && ARRAY['internal'::regtype, 'cstring'::regtype]::oid[]
"""
_IMPLICIT_CASTS = """
SELECT castsource::regtype::text, casttarget::regtype::text FROM pg_cast WHERE castcontext = 'i'
"""
_OPERATORS_THERE = """
SELECT oprname::text, oprleft::regtype::text, oprright::regtype::text
  FROM pg_operator WHERE oprname = ANY (%s)
"""
