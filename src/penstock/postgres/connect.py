"""Opening a connection: a DSN in, a psycopg connection out, or an error that says what to do.

Both kinds of connection come from here: ordinary ones (catalog, set-up, targets) and the
replication connection. All of libpq's parameters, environment variables, services and password
files work. No message repeats the DSN: it may hold a password.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg import conninfo

from penstock.errors import (
    AuthenticationFailed,
    BadDsn,
    DatabaseMissing,
    PrivilegeMissing,
    SlotLimitReached,
    SourceError,
    SourceUnavailable,
)
from penstock.names import quote
from penstock.postgres.failures import translated, walsender_limit_fix
from penstock.printed_sql import SqlKind, printed
from penstock.sections import Dsn

# Long enough for a slow TLS handshake over a continent, short enough for a person to wait.
_CONNECT_TIMEOUT_S = 10
# libpq's defaults leave a dead peer unnoticed for two hours, or a quarter of one while data that
# we sent is unacknowledged.
_TCP_KEEPALIVE = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
# A role that may create functions in a schema of the path would have them run with our rights: one
# that fits the arguments better is taken before that of pg_catalog, and so is an operator. Without
# pg_temp, temporary tables would be searched first. Not as an option of the connection, which a
# pooler may refuse; before anything else, and without an expression. What stands for an object
# (regclass) is printed with its schema.
_SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"
# By their names, as not every version has each of them. Without parameters, which a replication
# connection does not take.
_WITHOUT_LIMITS = """
SELECT set_config(name, '0', false)
  FROM pg_settings
 WHERE name IN ('statement_timeout', 'transaction_timeout', 'lock_timeout',
                'idle_in_transaction_session_timeout', 'idle_session_timeout')
"""
_USUAL = "dsn in [source]"
# Parameters that name files with what else libpq has made of the others.
_FILES = ("passfile", "service", "servicefile")
# A directory of sockets that is none.
_NOWHERE = "/dev/null"


def connect(dsn: str, **parameters: Any) -> psycopg.Connection:
    """Open an autocommit connection, whose transactions see what others commit meanwhile; errors
    name the setting that holds the DSN.

    `parameters` are libpq's; they win over the DSN, except `options`, which are added to it.
    """
    given = parse_dsn(dsn)
    service = _service(given)
    if extra := parameters.pop("options", None):
        # In libpq's order: the DSN, then its service, then the environment.
        before = given.get("options") or service.get("options") or os.environ.get("PGOPTIONS", "")
        parameters["options"] = f"{before} {extra}".strip()
    # Of a database that does not say what its text is, psycopg would give bytes.
    merged = {**_defaults(service), **given, "client_encoding": "utf8", **parameters}
    try:
        connection = psycopg.connect(autocommit=True, **merged)
    except psycopg.Error as error:
        raise _explain(error, given, origin(dsn)) from None
    try:
        with translated("set the search path"):
            connection.execute(_SEARCH_PATH)
    except BaseException:
        connection.close()
        raise
    # The default of the database or the role may be stricter: then a transaction would not see what
    # executors stage for it, and would fail at each row that it has waited for.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


def connect_unlimited(
    dsn: str, *, lock_timeout_s: float = 0, **parameters: Any
) -> psycopg.Connection:
    """Without the role's limits on time: what takes long would meet them again and again.

    `lock_timeout_s` is a limit of the caller's own.
    """
    connection = connect(dsn, **parameters)
    try:
        with translated("lift the limits of a session"):
            connection.execute(_WITHOUT_LIMITS)
            if lock_timeout_s:
                connection.execute(f"SET lock_timeout = {lock_timeout_s * 1000:.0f}".encode())
    except BaseException:
        connection.close()
        raise
    return connection


def set_for_session(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    """Change settings of the session: not as options of the connection, which a pooler refuses."""
    connection.execute(
        "SELECT set_config(name, value, false)"
        "  FROM unnest(%s::text[], %s::text[]) AS given (name, value)",
        [list(settings), list(settings.values())],
    )


def portable(dsn: Dsn) -> Dsn:
    """The same connection for another machine, with what this one's environment and files add."""
    with connect(dsn) as connection:
        info = connection.info
        given = {key: text for key, text in info.get_parameters().items() if key not in _FILES}
        password = {"password": info.password} if info.password else {}
    return Dsn(conninfo.make_conninfo("", **given, **password), origin(dsn))


def _defaults(service: Mapping[str, str]) -> dict[str, Any]:
    """Return our parameters, except those that the environment or a service file has."""
    ours = {"connect_timeout": _CONNECT_TIMEOUT_S, **_TCP_KEEPALIVE}
    said = {*service, *(["connect_timeout"] if "PGCONNECT_TIMEOUT" in os.environ else [])}
    usable = {name: value for name, value in ours.items() if name not in said}
    return {"fallback_application_name": "penstock", **usable}


def _service(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a DSN's service and of the environment, if it names a service.

    Only libpq knows where a service is defined, and reads it only to connect: to a place where
    nobody listens, which it reports at once and without a network.
    """
    if "service" not in given and "PGSERVICE" not in os.environ:
        return {}
    named = {name: value for name, value in given.items() if name in _FILES}
    nowhere = conninfo.make_conninfo("", **named, host=_NOWHERE, hostaddr="")
    tried = psycopg.pq.PGconn.connect_start(nowhere.encode())
    try:
        return {option.keyword.decode(): option.val.decode() for option in tried.info if option.val}
    finally:
        tried.finish()


def origin(dsn: str) -> str:
    """The setting or the variable that holds the DSN."""
    return dsn.origin if isinstance(dsn, Dsn) else _USUAL


def parse_dsn(dsn: str) -> dict[str, Any]:
    """The parameters of a connection string, or `BadDsn`."""
    what = origin(dsn)
    if problem := _unreadable(dsn):
        raise BadDsn(
            f"{what} is not a connection string: {problem}",
            remedy="Write it in UTF-8, or with % and two hexadecimal digits for each such byte",
            what=what,
        )
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise _not_parsed(str(error).strip(), dsn, what) from None
    if misread := _misread_password(given):
        raise BadDsn(f"{what} is not a connection string: {misread}", remedy=_DSN_REMEDY, what=what)
    return given


def _unreadable(dsn: str) -> str | None:
    try:
        dsn.encode()
    except UnicodeEncodeError:
        return "it holds bytes that are not UTF-8"
    return "it holds a NUL" if "\0" in dsn else None


def _not_parsed(reason: str, dsn: str, what: str) -> BadDsn:
    """libpq quotes the part it stumbled over, which may be a piece of the password.

    The name of a parameter is none if it resembles one of libpq's, or if there is no password.
    """
    problem = f"{what} is not a connection string: "
    option = re.search(r'invalid (?:connection option|URI query parameter:) "([^"]*)"', reason)
    if option is None:
        reason = re.sub(r'"[^"]*"', '"…"', reason)
        return BadDsn(problem + reason, remedy=_DSN_REMEDY, what=what)
    known = [default.keyword.decode() for default in psycopg.pq.Conninfo.get_defaults()]
    close = difflib.get_close_matches(option[1], known, n=1, cutoff=0.75)
    if close:
        remedy = f"Did you mean {close[0]}?"
    elif "pass" in dsn.lower() or "@" in dsn:
        reason, remedy = reason.replace(option[0], "invalid connection option"), _DSN_REMEDY
    else:
        remedy = "Correct the name; the PostgreSQL manual has all, under libpq, parameter key words"
    return BadDsn(problem + reason, remedy=remedy, what=what)


def _misread_password(given: dict[str, Any]) -> str | None:
    """An unescaped @, : or / in a password moves its rest into host, port or database name."""
    if "@" in str(given.get("host", "")):
        return "there is an @ in the host name"
    if not re.fullmatch(r"[\d,]*", str(given.get("port", ""))):
        return "the port is not a number"
    if "@" in str(given.get("dbname", "")):
        return "there is an @ in the database name"
    return None


_DSN_REMEDY = (
    "Write it as postgresql://user@host:5432/database or as key=value pairs, "
    "with %40 for @ and %2F for / in a password"
)


def place(given: dict[str, Any]) -> str:
    """Where a connection goes, without its secrets.

    >>> place({"host": "db", "port": "5432", "dbname": "app", "password": "secret"})
    'db:5432/app'
    """
    named = (given.get(key) for key in ("host", "hostaddr", "service"))
    host = next(filter(None, named), None) or os.environ.get("PGHOST") or "the local socket"
    port = f":{given['port']}" if given.get("port") else ""
    database = f"/{given['dbname']}" if given.get("dbname") else ""
    return f"{host}{port}{database}"


# A failed connection carries no SQLSTATE (libpq keeps only the text), so we read the text. On a
# server whose lc_messages is not English these fall through to SourceUnavailable, with the text.
# The remedies are for a user and a database.
_PATTERNS: tuple[tuple[str, type[SourceError], Callable[[str, str], str]], ...] = (
    (
        (
            r"password authentication failed|no password supplied|no pg_hba.conf entry"
            r"|authentication failed|role .* does not exist|pg_hba.conf rejects"
            r"|certificate verify failed|role .* is not permitted to log in"
        ),
        AuthenticationFailed,
        lambda *_: (
            "Check the user, its password (PGPASSWORD, ~/.pgpass or the DSN) and pg_hba.conf; "
            "replication connections to a database need no entry of their own"
        ),
    ),
    (
        r"database .* does not exist",
        DatabaseMissing,
        lambda *_: "Correct the database name in the DSN",
    ),
    (
        r"permission denied to start WAL sender|must be superuser or replication role",
        PrivilegeMissing,
        lambda user, _: printed(SqlKind.REPLICATION, f"ALTER ROLE {user} REPLICATION").after(
            "Let the role replicate, as a superuser"
        ),
    ),
    (
        r"number of requested standby connections exceeds \"?max_wal_senders",
        SlotLimitReached,
        lambda *_: walsender_limit_fix(),
    ),
    (
        r"permission denied for database",
        PrivilegeMissing,
        lambda user, database: printed(
            SqlKind.CONNECT, f"GRANT CONNECT ON DATABASE {database} TO {user}"
        ).after("Let the role connect, as the database's owner or a superuser"),
    ),
)
_UNUSABLE = r"invalid (connection option|\w+ value|port number)|definition of service|bad value"
_UNUSABLE_REMEDIES = (
    (
        r"definition of service",
        "Define the service in ~/.pg_service.conf or in the file that PGSERVICEFILE names",
    ),
    (
        r"invalid sslmode value",
        "Use one of disable, allow, prefer, require, verify-ca and verify-full",
    ),
    (r"integer|bad value", "Give that parameter a whole number"),
    (r"invalid \w+ value", "Give that parameter a value from the PostgreSQL manual, under libpq"),
)
_UNAVAILABLE_REMEDY = "Check that the server runs and that host, port and TLS settings are right"


def _explain(error: psycopg.Error, given: dict[str, Any], what: str) -> SourceError:
    where = place(given)
    # There may be several, to the same place.
    named = where if what == _USUAL else f"{where} ({what})"
    text = _essence(str(error))
    if re.search(_UNUSABLE, text):
        return _unusable(text, given, what)
    facts = _resolved(error)
    user, database = (quote(facts.get(key, "…")) for key in ("user", "database"))
    for pattern, kind, remedy in _PATTERNS:
        if re.search(pattern, text):
            problem = f"{named}: {text}"
            return kind(problem, remedy=remedy(user, database), where=where, **facts)
    return SourceUnavailable(
        f"cannot connect to {named}: {text}", remedy=_UNAVAILABLE_REMEDY, where=where, **facts
    )


def _unusable(text: str, given: dict[str, Any], what: str) -> BadDsn:
    if "port number" in text:  # it may be a piece of a password with a colon in it
        text = re.sub(r'"[^"]*"', '"…"', text)
    if password := given.get("password"):
        text = text.replace(str(password), "…")
    fitting = (remedy for pattern, remedy in _UNUSABLE_REMEDIES if re.search(pattern, text))
    return BadDsn(f"{what} is not usable: {text}", remedy=next(fitting, _DSN_REMEDY), what=what)


def _resolved(error: psycopg.Error) -> dict[str, str]:
    """Who wanted to connect where, as libpq made it out of DSN, service and environment."""
    if (tried := error.pgconn) is None:
        return {}
    found = {"user": tried.user, "database": tried.db, "host": tried.host, "port": tried.port}
    return {key: value.decode(errors="replace") for key, value in found.items() if value}


def _essence(text: str) -> str:
    """The last reason in libpq's text, on one line, without the address it repeats."""
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"^.*(?:port \d+|socket \S+) failed: (?:FATAL: )?", "", text).strip()
