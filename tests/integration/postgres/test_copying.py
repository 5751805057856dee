"""COPY in blocks: all of it, and what breaks it off."""

from __future__ import annotations

import pytest
from psycopg import OperationalError
from psycopg import errors as pg

from penstock.postgres import copying
from penstock.postgres.copying import copied_blocks
from support.database import Database

ROWS = "COPY (SELECT {} FROM generate_series(1, 20000) AS n) TO STDOUT"


def test_blocks_end_with_rows_and_hold_all_of_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_BURST", 1_000)
    monkeypatch.setattr(copying, "_BLOCK", 10_000)
    with database.connect() as connection:
        for rows in (20_000, 0):
            statement = f"COPY (SELECT generate_series(1, {rows})) TO STDOUT"
            with connection.cursor() as cursor, cursor.copy(statement.encode()):
                blocks = list(copied_blocks(connection.pgconn))
            assert b"".join(blocks).split() == [str(n).encode() for n in range(1, rows + 1)]
            assert all(block.endswith(b"\n") for block in blocks)
            assert len(blocks) >= 10 or not rows
            # It can be used again.
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_an_error_in_the_midst_is_raised_and_the_connection_goes_on(database: Database) -> None:
    with database.connect() as connection:
        with (
            pytest.raises(pg.DivisionByZero),
            connection.cursor() as cursor,
            cursor.copy(ROWS.format("1 / (n - 15000)").encode()),
        ):
            list(copied_blocks(connection.pgconn))
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_connection_that_is_lost_is_told(database: Database) -> None:
    with database.connect() as connection:
        terminate = (
            f"CASE n WHEN 15000 THEN pg_terminate_backend({connection.info.backend_pid}) END"
        )
        with (
            pytest.raises(OperationalError),
            connection.cursor() as cursor,
            cursor.copy(ROWS.format(terminate).encode()),
        ):
            list(copied_blocks(connection.pgconn))
        assert connection.broken or connection.closed
