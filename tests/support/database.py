"""One database on an embedded server, with the few statements that most tests need."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from penstock.lsn import Lsn
from penstock.postgres.embedded import EmbeddedPostgres

_SUPERUSER = "postgres"


class Database:
    """Created on entering, dropped with all its slots on leaving."""

    def __init__(self, server: EmbeddedPostgres, name: str, encoding: str = "UTF8") -> None:
        self.server = server
        self.name = name
        self._encoding = encoding
        self._asking: psycopg.Connection | None = None

    def __enter__(self) -> Self:
        with self._admin() as admin:
            self._drop(admin)
            # Files in memory are copied in half the time that their pages take in WAL.
            create = sql.SQL(
                "CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0 STRATEGY file_copy"
            )
            admin.execute(create.format(sql.Identifier(self.name), self._encoding))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._asking is not None:
            self._asking.close()
        if self.server.running:
            with self._admin() as admin:
                self._drop(admin)

    def dsn(self, user: str = _SUPERUSER, **parameters: str) -> str:
        """A role without a password of its own, if there is such a role, gets the server's."""
        if user != _SUPERUSER and "password" not in parameters:
            with self._admin() as admin, suppress(psycopg.errors.UndefinedObject):
                statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
                admin.execute(statement.format(sql.Identifier(user), self.server.password))
        return self.server.dsn(self.name, user, **parameters)

    def connect(self, *, autocommit: bool = True, user: str = _SUPERUSER) -> psycopg.Connection:
        return psycopg.connect(self.dsn(user), autocommit=autocommit, client_encoding="utf8")

    def run(self, *statements: str) -> None:
        """Run each statement in a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """For questions, which may come a hundred times a second: the connection is kept."""
        if not self._is_alive():
            self._asking = self.connect()
        assert self._asking is not None
        return self._asking.execute(query.encode(), parameters or None).fetchall()

    def _is_alive(self) -> bool:
        """Not if the server was restarted since, or whoever tests it has cut the connection."""
        if self._asking is None or self._asking.closed:
            return False
        try:
            self._asking.execute("SELECT")
        except psycopg.OperationalError:
            self._asking.close()
            return False
        return True

    def value(self, query: str, *parameters: Any) -> Any:
        return self.rows(query, *parameters)[0][0]

    def lsn(self, query: str, *parameters: Any) -> Lsn:
        return Lsn.parse(self.value(query, *parameters))

    def wal_position(self) -> Lsn:
        """The end of the WAL that is flushed, which is all that a walsender sends."""
        return self.lsn("SELECT pg_current_wal_flush_lsn()")

    def confirmed(self, slot: str) -> Lsn:
        return self.lsn(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", slot
        )

    def create_slot(self, slot: str, plugin: str = "pgoutput") -> Lsn:
        return self.lsn("SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)", slot, plugin)

    def isolate(self) -> None:
        """Transactions that do not say otherwise see nothing that commits meanwhile."""
        setting = "default_transaction_isolation = 'repeatable read'"
        self.run(f'ALTER DATABASE "{self.name}" SET {setting}')

    def _drop(self, admin: psycopg.Connection) -> None:
        slots = admin.execute(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s",
            [self.name],
        ).fetchall()
        for slot, pid in slots:
            if pid is not None:
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            # A temporary one goes with its connection, perhaps just now.
            with suppress(psycopg.errors.UndefinedObject):
                admin.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        admin.execute(drop.format(sql.Identifier(self.name)))

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self.server.dsn(), autocommit=True)
