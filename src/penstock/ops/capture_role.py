"""Whose role capture will run with, seen from the connection of set-up.

A connection with `dsn` tells best: libpq alone knows its defaults, services and environment. But
set-up comes before capture, so that the role may not be able to connect yet; then we go by what
libpq made of `dsn` before it was refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from penstock.config import SourceConfig
from penstock.errors import BadDsn, SourceError, SourcesDiffer, SourceUnavailable
from penstock.postgres.connect import connect, parse_dsn
from penstock.postgres.failures import translated


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a connection leads, as far as it is known."""

    database: str
    host: str = ""
    port: str = ""
    # None: it could not be asked.
    system_id: int | None = None

    def __str__(self) -> str:
        server = ":".join(part for part in (self.host, self.port) if part)
        return f'database "{self.database}"' + (f" at {server}" if server else "")

    def may_be(self, other: _Place) -> bool:
        if self.database != other.database:
            return False
        if self.system_id is not None and other.system_id is not None:
            return self.system_id == other.system_id
        known = self.host and other.host
        return not known or (_host(self.host), self.port) == (_host(other.host), other.port)


def _host(host: str) -> str:
    local = host.startswith(("/", "127.", "@")) or host in {"localhost", "::1"}
    return "localhost" if local else host.lower()


def capture_role_name(source: SourceConfig, connection: psycopg.Connection) -> str:
    """The role of `dsn`; raises `SourcesDiffer` if `connection` leads elsewhere than `dsn`."""
    if source.setup_dsn is None:
        return connection.info.user
    try:
        with connect(source.conninfo) as capturing:
            user, there = capturing.info.user, _asked(capturing)
    except BadDsn:
        raise
    except SourceError as error:
        user, there = _as_resolved(source, error)
    here = _asked(connection)
    if not there.may_be(here):
        raise SourcesDiffer(
            f"`dsn` leads to {there}, and `setup_dsn` to {here}",
            remedy=(
                "Let both in [source] name the same database: the slot and the publication that "
                "set-up makes belong to one"
            ),
        )
    return user


def _asked(connection: psycopg.Connection) -> _Place:
    with translated("ask the server who it is"):
        row = connection.execute(
            "SELECT current_database(), (SELECT system_identifier FROM pg_control_system())"
        ).fetchone()
    if row is None:  # a SELECT without FROM always has one row
        raise RuntimeError("the server told nothing about itself")
    info = connection.info
    return _Place(row[0], info.host, str(info.port), row[1])


def _as_resolved(source: SourceConfig, error: SourceError) -> tuple[str, _Place]:
    facts = vars(error)
    given = parse_dsn(source.conninfo)
    user = facts.get("user") or given.get("user")
    database = facts.get("database") or given.get("dbname") or user
    if not user or not database:
        raise BadDsn(
            f"the role of {source.conninfo.origin} is not known, for it cannot connect: "
            f"{error.problem}",
            remedy="Name its user (user=…) and database in it, or let it connect",
        ) from error
    if isinstance(error, SourceUnavailable):
        # From here the server may go by another name, or through a tunnel.
        return user, _Place(database)
    return user, _Place(database, facts.get("host") or "", facts.get("port") or "")
