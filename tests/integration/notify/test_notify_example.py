"""The notify example as a user meets it: its SQL, its configuration, its load."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.config import Config
from penstock.notify.service import bulk, steady
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from support.beside import beside
from support.database import Database
from support.notify_example import TARGETS, broken_keys, written
from support.ops import replica_identities
from support.waiting import eventually

SUMMER = datetime(2026, 6, 30, 12, tzinfo=UTC)


def troubles(config: Config) -> list[str]:
    found = [one for one in diagnose(config) if one.level == "error"]
    return [f"{one.check}: {one.what}: {one.why}" for one in found]


def test_sql_and_configuration_fit_each_other_and_setup_finds_all_it_needs(
    database: Database, tmp_path: Path
) -> None:  # M4.1, M4.2, M5.2
    config = written(database, tmp_path)
    identities = replica_identities(database)
    assert identities["notifications"] == identities["notification_history"] == "f"
    plan = setup(config)
    # The tables are the user's own, and their identities are right: nothing of that is made.
    made = " ".join(statement for step in plan.steps for statement in step.statements)
    assert "REPLICA IDENTITY" not in made
    assert not re.search(r"CREATE TABLE public\.", made)
    assert setup(config).steps == ()
    assert troubles(config) == []


def test_targets_that_setup_makes_have_the_same_columns(
    database18: Database, tmp_path: Path
) -> None:  # M5.2
    config = written(database18, tmp_path)
    query = (
        "SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod)"
        " FROM pg_attribute WHERE attrelid = ANY (%s::regclass[]) AND attnum > 0"
        " AND attname NOT IN ('id', 'count') ORDER BY 1, attnum"
    )
    ours = database18.rows(query, list(TARGETS))
    database18.run(*(f"DROP TABLE {target}" for target in TARGETS))
    setup(config)
    assert database18.rows(query, list(TARGETS)) == ours


def test_counts_that_outlive_the_rows_as_the_readme_has_them_need_less_in_the_wal(
    database: Database, tmp_path: Path
) -> None:  # M4.2, M4.5
    written(database, tmp_path)
    settings = tomllib.loads((tmp_path / "penstock.toml").read_text())
    (aggregate,) = settings["aggregate"]
    with_sources, with_tables = re.findall(
        r"^```toml\n(.*?)^```", (tmp_path / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    settings["source"] |= tomllib.loads(with_tables)
    aggregate["sources"] = tomllib.loads(with_sources)["aggregate"]["sources"]
    aggregate["verifiable"] = False
    config = Config.model_validate(settings)
    setup(config)
    assert replica_identities(database)["notifications"] == "i"
    assert troubles(config) == []


def test_doctor_says_what_the_small_identity_cannot_give(
    database18: Database, tmp_path: Path
) -> None:  # M4.2
    config = written(database18, tmp_path)
    database18.run("ALTER TABLE notifications REPLICA IDENTITY USING INDEX notifications_id_status")
    (said,) = [one for one in troubles(config) if "old values" in one]
    assert "DELETE of public.notifications do not write the old created_at" in said


@pytest.mark.parametrize("service", ["NULL", "'00000000-0000-0000-0000-000000000000'"])
def test_the_read_function_wants_a_service(
    database: Database, tmp_path: Path, service: str
) -> None:
    written(database, tmp_path)
    with pytest.raises(psycopg.errors.NullValueNotAllowed, match="needs the id of a service"):
        database.rows(f"SELECT * FROM service_stats({service})")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        database.rows("SELECT * FROM service_stats('')")


def test_the_read_function_gives_the_counts_of_one_service(
    database: Database, tmp_path: Path
) -> None:
    written(database, tmp_path)
    one, other, template = (f"{digit}" * 32 for digit in "123")
    database.run(
        "INSERT INTO ft_service_stats"
        " (service_id, template_id, notification_type, notification_status, count) VALUES"
        f" ('{one}', '{template}', 'sms', 'sent', 3), ('{one}', '{template}', 'sms', 'created', 0),"
        f" ('{other}', '{template}', 'sms', 'sent', 4)"
    )
    query = "SELECT notification_type, notification_status, count FROM service_stats(%s)"
    assert database.rows(query, one) == [("sms", "sent", 3)]
    assert database.rows(query, template) == []


def test_bulk_keeps_foreign_keys_and_tells_its_progress(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(database, tmp_path)
    monkeypatch.setattr("penstock.notify.service._ROWS_AT_ONCE", 2_000)
    told: list[int] = []
    with database.connect() as connection:
        bulk(connection, 5_000, on_rows=told.append)
        # What was switched off is on again.
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("UPDATE notifications SET service_id = gen_random_uuid()")
    assert told == [2_000, 4_000, 5_000]
    assert database.value("SELECT count(*) FROM notifications") == 5_000
    assert broken_keys(database) == []
    assert database.value(
        "SELECT bool_and(n.service_id = t.service_id AND n.notification_type = t.notification_type)"
        " FROM notifications AS n JOIN templates AS t ON t.id = n.template_id"
    )
    assert database.value("SELECT count(DISTINCT notification_status) FROM notifications") == 6
    assert database.value("SELECT count(DISTINCT service_id) FROM notifications") == 20
    assert 0.2 < database.value("SELECT count(job_id)::float / count(*) FROM notifications") < 0.4


def test_bulk_needs_no_superuser(database18: Database, tmp_path: Path) -> None:
    written(database18, tmp_path)
    with database18.connect() as connection:
        # A role of the server's own, so that none is left behind.
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO pg_write_all_data")
        connection.execute("SET ROLE pg_write_all_data")
        bulk(connection, 100)
    assert database18.value("SELECT count(*) FROM notifications") == 100


def test_the_same_seed_gives_the_same_counts(database18: Database, tmp_path: Path) -> None:
    written(database18, tmp_path)
    query = (
        "SELECT service_id, template_id, job_id, notification_type, key_type, notification_status,"
        " created_at, updated_at FROM notifications ORDER BY created_at"
    )
    seen: list[list[Any]] = []
    for seed in (0.25, 0.25, 0.5):
        with database18.connect() as connection:
            bulk(connection, 500, until=SUMMER, seed=seed)
        seen.append(database18.rows(query))
        database18.run("TRUNCATE notifications")
    assert seen[0] == seen[1] != seen[2]


KINDS = (
    "SELECT relname, n_tup_ins > 0, n_tup_upd > 0, n_tup_del > 0 FROM pg_stat_user_tables"
    " WHERE relname LIKE 'notification%%' AND relname <> 'notification_status_types' ORDER BY 1"
)


def test_a_steady_load_makes_all_kinds_of_changes_and_keeps_foreign_keys(
    database: Database, tmp_path: Path
) -> None:
    written(database, tmp_path)
    told: list[int] = []

    def load(done: threading.Event) -> None:
        steady(database.dsn(), rate=500, stop=done, seed=0.5, on_changes=told.append)

    def all_kinds() -> bool:
        return database.rows(KINDS) == [
            ("notification_history", True, True, True),
            ("notifications", True, True, True),
        ]

    with beside(load), beside(load):  # two at once do not get in each other's way
        eventually(all_kinds, "inserts, updates and deletes in both tables", within_s=30)
    assert told[-1] > 0
    assert broken_keys(database) == []
    statuses = database.value(
        "SELECT count(DISTINCT notification_status)"
        " FROM (TABLE notifications UNION ALL TABLE notification_history) AS n"
    )
    assert statuses == 6


def test_a_steady_load_keeps_about_its_rate(database18: Database, tmp_path: Path) -> None:
    written(database18, tmp_path)
    with database18.connect() as connection:
        bulk(connection, 5_000)
    told: list[int] = []

    def load(done: threading.Event) -> None:
        steady(database18.dsn(), rate=300, stop=done, on_changes=told.append)

    started = time.monotonic()
    with beside(load):
        eventually(lambda: told and told[-1] >= 600, "two seconds of load", within_s=30)
    # The archive's moves are two changes each. A slow machine may take longer.
    assert time.monotonic() - started > 1.0
    assert told == sorted(told)


def program(folder: Path, dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "load.py"), "--dsn", dsn, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_the_program_creates_fills_and_loads(database18: Database, tmp_path: Path) -> None:
    # M7.1
    written(database18, tmp_path)
    database18.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    dsn = database18.dsn()
    # The files are the user's own.
    with (tmp_path / "targets.sql").open("a") as file:
        file.write("COMMENT ON TABLE notifications IS 'ours';\n")
    assert program(tmp_path, dsn, "create").returncode == 0
    assert database18.value("SELECT obj_description('notifications'::regclass)") == "ours"
    done = program(tmp_path, dsn, "bulk", "--rows", "500", "--seed", "0.5")
    assert done.returncode == 0
    assert "500 of 500 rows" in done.stdout
    done = program(tmp_path, dsn, "steady", "--rate", "200", "--seconds", "1.2")
    assert done.returncode == 0
    assert len(re.findall(r" s +\d+ changes", done.stdout)) == 2
    assert database18.value("SELECT count(*) FROM notifications") > 500


def test_the_program_names_what_is_wrong(database18: Database, tmp_path: Path) -> None:
    # M7.3
    written(database18, tmp_path)
    done = program(tmp_path, database18.dsn(), "create")
    assert done.returncode == 2
    assert 'relation "services" already exists' in done.stderr
    database18.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    for command in ("bulk", "steady"):
        done = program(tmp_path, database18.dsn(), command)
        assert done.returncode == 2
        assert "has not the tables of the example" in done.stderr
        assert "schema.sql" in done.stderr
    for dsn, said in (
        ("what is this", "--dsn is not a connection string"),
        ("host=127.0.0.1 port=1 password=secret", "cannot connect to 127.0.0.1:1"),
    ):
        done = program(tmp_path, dsn, "steady")
        assert done.returncode == 2
        assert said in done.stderr
        assert "secret" not in done.stderr
    done = program(tmp_path, "dbname=x", "steady", "--rate", "-1")
    assert done.returncode == 2
    assert "--rate: should be a number from" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["steady"], 0, "changes"),
        (["bulk", "--rows", "100000000"], 130, "interrupted: what is told above is in"),
    ],
)
def test_ctrl_c_ends_the_program_cleanly(
    database18: Database, tmp_path: Path, words: list[str], code: int, said: str
) -> None:  # M7.1
    written(database18, tmp_path)
    command = [sys.executable, str(tmp_path / "load.py"), "--dsn", database18.dsn(), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        eventually(
            lambda: database18.value("SELECT count(*) FROM notifications"),
            "it has begun",
            within_s=60,
        )
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (code, b"")
    assert said in out.decode()
