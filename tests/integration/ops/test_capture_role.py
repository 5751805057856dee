"""Whose role capture runs with, and that `dsn` and `setup_dsn` lead to the same database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.errors import (
    BadDsn,
    NotPublishable,
    PrivilegeMissing,
    SourcesDiffer,
)
from penstock.ops.capture_role import capture_role_name
from penstock.ops.doctor import diagnose
from penstock.ops.setup import connect_for_setup, setup
from penstock.ops.teardown import teardown
from penstock.postgres.embedded import EmbeddedPostgres
from support.commands import penstock
from support.database import Database
from support.ops import config_for, slots


@pytest.fixture
def orders(database18: Database) -> Iterator[Database]:
    database18.run(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "DROP ROLE IF EXISTS served",
        "CREATE ROLE served LOGIN REPLICATION",
        "DROP ROLE IF EXISTS no_login",
        "CREATE ROLE no_login NOLOGIN REPLICATION",
    )
    yield database18
    database18.run("DROP ROLE served", "DROP ROLE no_login")


def named(database: Database, **source: str) -> str:
    config = config_for(database, **source).source
    with connect_for_setup(config) as connection:
        return capture_role_name(config, connection)


@pytest.fixture
def service(orders: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "services"
    info = psycopg.conninfo.conninfo_to_dict(orders.dsn("served"))
    file.write_text("[app]\n" + "".join(f"{key}={value}\n" for key, value in info.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    return file


def test_the_user_may_be_in_a_service_file(orders: Database, service: Path) -> None:
    assert named(orders, dsn="service=app") == "served"
    assert named(orders, dsn="service=app", setup_dsn=orders.dsn()) == "served"
    setup(config_for(orders, dsn="service=app", setup_dsn=orders.dsn()))
    assert slots(orders) == ["penstock"]


def test_a_user_who_cannot_connect_yet_is_known_all_the_same(
    orders: Database, service: Path
) -> None:
    service.write_text(service.read_text().replace("served", "no_login"))
    assert named(orders, dsn="service=app", setup_dsn=orders.dsn()) == "no_login"
    assert named(orders, dsn=orders.dsn("no_login"), setup_dsn=orders.dsn()) == "no_login"
    with pytest.raises(PrivilegeMissing, match='no role "nobody_such"'):
        setup(config_for(orders, dsn=orders.dsn("nobody_such"), setup_dsn=orders.dsn()))


def test_a_user_who_cannot_be_known_is_an_error(orders: Database, service: Path) -> None:
    service.write_text("[app]\nhost=no-such-host.invalid\n")
    with pytest.raises(BadDsn) as caught:
        named(orders, dsn="service=app host=no-such-host.invalid", setup_dsn=orders.dsn())
    assert "dsn in [source]" in caught.value.problem
    assert "Name its user" in caught.value.remedy


@pytest.mark.parametrize("user", ["postgres", "no_login"])
def test_two_databases_are_refused_before_anything_is_made(orders: Database, user: str) -> None:
    other = orders.server.dsn("postgres", user)
    config = config_for(orders, dsn=other, setup_dsn=orders.dsn())
    for command in (setup, teardown):
        with pytest.raises(SourcesDiffer, match=f'database "postgres" .*"{orders.name}"'):
            command(config)
    assert slots(orders) == []
    assert orders.value("SELECT count(*) FROM pg_publication") == 0


def test_two_servers_are_refused_even_if_the_databases_have_one_name(orders: Database) -> None:
    with EmbeddedPostgres(18) as server, Database(server, orders.name) as twin:
        for user in ("postgres", "nobody_such"):
            with pytest.raises(SourcesDiffer):
                setup(config_for(orders, dsn=twin.dsn(user), setup_dsn=orders.dsn()))
        findings = diagnose(config_for(orders, setup_dsn=twin.dsn()))
    (finding,) = [one for one in findings if one.check == "setup_connection"]
    assert "and `setup_dsn` to database" in finding.what


def test_a_system_catalog_is_refused_when_planning(orders: Database) -> None:
    for name in ("pg_catalog.pg_class", "information_schema.sql_features"):
        with pytest.raises(NotPublishable, match="system table"):
            setup(config_for(orders, name), dry_run=True)


def test_a_name_is_folded_as_the_server_folds_it(orders: Database) -> None:
    orders.run("CREATE TABLE ÄRGER_𝔘 (id int PRIMARY KEY)")
    assert setup(config_for(orders, "ÄRGER_𝔘"), dry_run=True).steps


def test_the_command_names_the_variable_of_a_bad_dsn(orders: Database, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[source]\ntables = ["orders"]\n')
    for dsn in ("host=h \udcff", "host=h zebra=1"):
        for command in ("setup", "capture"):
            done = penstock(command, "--config", str(file), PENSTOCK_SOURCE_DSN=dsn)
            assert done.returncode == 2
            assert "environment variable PENSTOCK_SOURCE_DSN is not" in done.stderr
    done = penstock("doctor", "--json", "--config", str(file), PENSTOCK_SOURCE_DSN="host=\udcff")
    assert json.loads(done.stdout)["exit_code"] == 2
