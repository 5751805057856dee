"""Facts about the server, where they differ between versions and roles."""

from __future__ import annotations

import psycopg
import pytest

from penstock.postgres.catalog import read_server
from support.database import Database


@pytest.mark.every_version
def test_the_wal_level_is_the_setting_where_the_server_knows_no_other(database: Database) -> None:
    with database.connect() as connection:
        assert read_server(connection).wal_level == "logical"


def test_the_wal_level_in_effect_decides_where_the_server_has_it(database18: Database) -> None:
    """Servers from 19 on have it; here a view stands in for such a server's settings."""
    with database18.connect() as connection:
        connection.execute(
            "CREATE TEMP VIEW pg_settings AS SELECT name, setting FROM pg_catalog.pg_settings "
            "UNION ALL SELECT 'effective_wal_level', 'replica'"
        )
        connection.execute("SET search_path = pg_temp, pg_catalog")
        assert read_server(connection).wal_level == "replica"


# M4.4
@pytest.mark.every_version
def test_a_list_of_plugins_that_a_role_may_not_read_is_unknown(database: Database) -> None:
    database.run("DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN")
    try:
        with psycopg.connect(database.dsn("reader"), autocommit=True) as connection:
            assert read_server(connection).output_plugin_libraries is None
    finally:
        database.run("DROP ROLE reader")
