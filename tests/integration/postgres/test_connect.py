"""Every way in which a connection can fail is its own error, and none repeats a password. M7.3"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from penstock.errors import (
    AuthenticationFailed,
    BadDsn,
    ConnectionLost,
    DatabaseMissing,
    PrivilegeMissing,
    SlotLimitReached,
    SourceError,
    SourceUnavailable,
)
from penstock.postgres import connect as connecting
from penstock.postgres.connect import connect, connect_unlimited, portable
from penstock.postgres.embedded import EmbeddedPostgres, free_port
from penstock.sections import Dsn
from support.waiting import eventually

SECRET = "hunter2"
RULES = """
host all rejected 127.0.0.1/32 reject
host all plain 127.0.0.1/32 trust
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedPostgres]:
    """A server that asks one role for a password and rejects another."""
    settings: dict[str, str | int] = {"max_wal_senders": 1}
    with EmbeddedPostgres(18, settings=settings) as server:
        rules = server.data_dir / "pg_hba.conf"
        rules.write_text(RULES + rules.read_text())
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            for statement in (
                f"CREATE ROLE locked LOGIN PASSWORD '{SECRET}'",
                f"CREATE ROLE carried LOGIN PASSWORD '{SECRET}'",
                "CREATE ROLE rejected LOGIN REPLICATION",
                "CREATE ROLE plain LOGIN",
                "CREATE ROLE no_login",
                "CREATE DATABASE closed",
                "REVOKE CONNECT ON DATABASE closed FROM PUBLIC",
                "SELECT pg_reload_conf()",
            ):
                connection.execute(statement.encode())
        yield server


def refused(dsn: str, **parameters: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        connect(dsn, **parameters)
    error = caught.value
    assert error.remedy
    for text in (str(error), repr(error), repr(error.__dict__)):
        assert SECRET not in text
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    return error


def test_a_good_connection_is_autocommit_and_carries_our_name(guarded: EmbeddedPostgres) -> None:
    with connect(guarded.dsn(user="locked", password=SECRET)) as connection:
        row = connection.execute("SELECT current_setting('application_name')").fetchone()
        assert row == ("penstock",)
        assert connection.autocommit


def test_one_of_several_settings_is_named(guarded: EmbeddedPostgres) -> None:  # M7.3
    dsn = guarded.dsn(user="nobody_such", password=SECRET)
    with pytest.raises(AuthenticationFailed, match=r" \(target_dsn in \[\[aggregate\]\] daily\): "):
        connect(Dsn(dsn, "target_dsn in [[aggregate]] daily"))
    with pytest.raises(AuthenticationFailed) as usual:
        connect(dsn)
    assert "dsn in" not in str(usual.value)


def test_options_are_added_to_those_of_the_dsn(guarded: EmbeddedPostgres) -> None:
    dsn = guarded.dsn(options="-c work_mem=7MB")
    with connect(dsn, options="-c lock_timeout=3s") as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
        assert connection.execute("SHOW lock_timeout").fetchone() == ("3s",)


@pytest.mark.parametrize("kind", [{}, {"replication": "database"}], ids=["ordinary", "replication"])
def test_the_search_path_is_ours_whatever_the_dsn_and_the_role_say(
    guarded: EmbeddedPostgres, kind: dict[str, str]
) -> None:  # M7.6
    with psycopg.connect(guarded.dsn(), autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres SET search_path = public")
    try:
        dsn = guarded.dsn(options="-c search_path=public")
        with connect(dsn, options="-c lock_timeout=3s", **kind) as connection:
            assert connection.execute("SHOW search_path").fetchone() == ("pg_catalog, pg_temp",)
    finally:
        with psycopg.connect(guarded.dsn(), autocommit=True) as connection:
            connection.execute("ALTER ROLE postgres RESET search_path")


@pytest.mark.parametrize("named_by", ["dsn", "environment"])
def test_options_are_added_to_those_of_a_service(
    guarded: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:  # M7.6
    services = tmp_path / "services.conf"
    place = f"host=127.0.0.1\nport={guarded.port}\ndbname=postgres\nuser=plain\n"
    services.write_text(f"[here]\n{place}options=-c work_mem=7MB\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGPASSFILE", str(guarded.passfile))
    # libpq takes those of the environment only where neither the DSN nor the service has any.
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=9MB")
    if named_by == "environment":
        monkeypatch.setenv("PGSERVICE", "here")
    dsn = "service=here" if named_by == "dsn" else "dbname=postgres"
    for replication in ({}, {"replication": "database"}):
        user = {"user": "postgres"} if replication else {}
        with connect(dsn, options="-c lock_timeout=3s", **user, **replication) as connection:
            assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
            assert connection.execute("SHOW lock_timeout").fetchone() == ("3s",)


def test_a_connection_that_is_lost_as_soon_as_it_is_there_is_told_as_such(
    guarded: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = "SELECT pg_terminate_backend(pg_backend_pid())"
    monkeypatch.setattr(connecting, "_WITHOUT_LIMITS", end)
    with pytest.raises(ConnectionLost):
        connect_unlimited(guarded.dsn())


@pytest.mark.parametrize(
    ("user", "parameters"),
    [
        ("locked", {"password": f"not {SECRET}"}),
        ("locked", {}),
        ("rejected", {"password": SECRET}),
        ("nobody_such", {"password": SECRET}),
        ("no_login", {}),
    ],
)
def test_a_refused_user_or_password_is_authentication(
    guarded: EmbeddedPostgres, user: str, parameters: dict[str, str]
) -> None:
    error = refused(guarded.dsn(user=user, **parameters))
    assert type(error) is AuthenticationFailed


def test_a_missing_database_is_named(guarded: EmbeddedPostgres) -> None:
    error = refused(guarded.dsn("no_such_db"))
    assert type(error) is DatabaseMissing
    assert "no_such_db" in error.problem


def test_a_database_that_the_role_may_not_enter_names_the_grant(guarded: EmbeddedPostgres) -> None:
    error = refused(guarded.dsn("closed", user="plain"))
    assert type(error) is PrivilegeMissing
    assert error.remedy == (
        "Let the role connect, as the database's owner or a superuser: "
        "GRANT CONNECT ON DATABASE closed TO plain"
    )


def test_a_role_that_may_not_replicate_names_the_grant(guarded: EmbeddedPostgres) -> None:
    error = refused(guarded.dsn(user="plain"), replication="database")
    assert type(error) is PrivilegeMissing
    assert error.remedy == "Let the role replicate, as a superuser: ALTER ROLE plain REPLICATION"


def walsender(server: EmbeddedPostgres) -> psycopg.Connection | None:
    try:
        return connect(server.dsn(), replication="database")
    except SlotLimitReached:
        return None


def test_no_free_walsender_is_named(guarded: EmbeddedPostgres) -> None:
    # The one of another test may not be gone yet.
    held = eventually(lambda: walsender(guarded), "a free walsender")
    assert held is not None
    with held:
        error = refused(guarded.dsn(), replication="database")
    assert type(error) is SlotLimitReached
    assert "max_wal_senders" in error.remedy


def test_a_server_that_is_not_there_is_unavailable() -> None:
    for dsn in (
        f"host=127.0.0.1 port={free_port()} user=u password={SECRET} dbname=db",
        f"postgresql://u:{SECRET}@no-such-host.invalid/db",
        f"host=/no/such/folder user=u password={SECRET}",
    ):
        assert type(refused(dsn)) is SourceUnavailable


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://u:{SECRET}@[::1/db",
        f"postgresql://u:{SECRET}%zz@h/db",
        f"postgresql://u:{SECRET}@h/db?nonsense={SECRET}",
        f"postgresql://u:a@{SECRET}@h/db",
        f"postgresql://u:a/{SECRET}@h/db",
        f"postgresql://u:a:{SECRET}/x@h/db",
        f"postgresql://u:p@h:{SECRET}/db",
        f"host=h password='{SECRET}",
        f"host=h {SECRET}",
        f"host=h pasword={SECRET}",
        f"host=h port={SECRET}",
        f"host=h password=a {SECRET}=b",
        f"postgresql://u:a/b?{SECRET}=c@h/db",
        f"host=127.0.0.1 password={SECRET} sslmode={SECRET}",
        f"host=h password={SECRET}\udcff",
        f"host=h password={SECRET}\0",
        SECRET,
    ],
)
def test_a_malformed_dsn_is_refused_without_repeating_any_of_it(dsn: str) -> None:
    assert type(refused(dsn)) is BadDsn


# M7.3: these are no secrets, and whoever mistyped them must see them.
@pytest.mark.parametrize(
    ("dsn", "shown", "remedy"),
    [
        ("host=127.0.0.1 sslmode=requir", '"requir"', "verify-full"),
        ("service=no_such", '"no_such"', "pg_service.conf"),
        ("host=127.0.0.1 connect_timeout=soon", "'soon'", "whole number"),
        ("host=127.0.0.1 keepalives=soon", '"soon"', "whole number"),
        ("host=127.0.0.1 target_session_attrs=best", '"best"', "manual"),
        (f"host=h pasword={SECRET}", '"pasword"', "Did you mean password?"),
        (f"postgresql://u:{SECRET}@h/db?sslmod=require", '"sslmod"', "Did you mean sslmode?"),
        ("host=h zebra=1", '"zebra"', "Correct the name"),
    ],
)
def test_what_is_no_secret_is_shown_with_a_remedy_that_fits(
    dsn: str, shown: str, remedy: str
) -> None:
    error = refused(dsn)
    assert type(error) is BadDsn
    assert shown in error.problem
    assert remedy in error.remedy


def test_a_dsn_from_the_environment_is_named_by_its_variable() -> None:
    name = "environment variable PENSTOCK_SOURCE_DSN"
    for dsn in ("host=h \udcff", "host=h zebra=1", "service=no_such"):
        assert refused(Dsn(dsn, name)).problem.startswith(f"{name} is not")


@pytest.mark.parametrize("password", ["p@ss", "sl/ash", "co:lon", "per%cent", "qu?estion", "ha#sh"])
def test_an_escaped_password_arrives_as_it_is(guarded: EmbeddedPostgres, password: str) -> None:
    with psycopg.connect(guarded.dsn(), autocommit=True) as connection:
        connection.execute(f"ALTER ROLE locked PASSWORD '{password}'".encode())
    escaped = quote(password, safe="")
    with connect(f"postgresql://locked:{escaped}@127.0.0.1:{guarded.port}/postgres"):
        pass


@pytest.mark.parametrize("named_by", ["dsn", "environment"])
def test_a_service_has_our_limits_where_it_does_not_say_otherwise(
    guarded: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:  # M5.3: a server that stops answering is given up after a minute
    services = tmp_path / "services.conf"
    place = f"host=127.0.0.1\nhostaddr=127.0.0.1\nport={guarded.port}\ndbname=postgres\n"
    services.write_text(f"[here]\n{place}keepalives_idle=77\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGUSER", "plain")
    if named_by == "environment":
        monkeypatch.setenv("PGSERVICE", "here")
    with connect("service=here" if named_by == "dsn" else "dbname=postgres") as connection:
        limits = connection.info.get_parameters()
    assert limits["keepalives_idle"] == "77"
    assert (limits["tcp_user_timeout"], limits["connect_timeout"]) == ("60000", "10")


def test_what_the_environment_adds_is_carried_to_another_machine(
    guarded: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.7
    services = tmp_path / "services.conf"
    services.write_text(f"[here]\nhost=127.0.0.1\nport={guarded.port}\ndbname=postgres\n")
    passwords = tmp_path / "passwords"
    passwords.write_text(f"127.0.0.1:{guarded.port}:postgres:carried:{SECRET}\n")
    passwords.chmod(0o600)
    with monkeypatch.context() as here:
        here.setenv("PGSERVICEFILE", str(services))
        here.setenv("PGPASSFILE", str(passwords))
        here.setenv("PGUSER", "carried")
        there = portable(Dsn("service=here", "dsn in [source]"))
    assert there.origin == "dsn in [source]"
    services.unlink()
    passwords.unlink()
    with connect(there) as connection:
        assert connection.info.user == "carried"
