"""What capture refuses to start with, made on a real server.

Each gives a configuration that runs into it, and takes back what would outlast the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from penstock.config import Config
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.replication import replicating
from support.workload import SLOT, insert_items, prepare

# From a database without tables, and the place for a log, to the configuration.
Trouble: TypeAlias = Callable[[Database, Path], AbstractContextManager[Config]]


def refusal(database: Database, log: Path) -> BaseException:
    """Why capture does not start; the slot is where it was."""
    before = database.confirmed(SLOT)
    with capturing(capture_config(database.dsn(), log)) as running:
        error = running.failure()
    assert database.confirmed(SLOT) == before
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    assert database.value(active, SLOT) is False
    return error


@contextmanager
def missing_slot(database: Database, log: Path) -> Iterator[Config]:
    prepare(database, slot=False)
    yield capture_config(database.dsn(), log)


@contextmanager
def physical_slot(database: Database, log: Path) -> Iterator[Config]:
    prepare(database, slot=False)
    database.run(f"SELECT pg_create_physical_replication_slot('{SLOT}')")
    try:
        yield capture_config(database.dsn(), log)
    finally:
        # It belongs to no database, and would not go with ours.
        database.run(f"SELECT pg_drop_replication_slot('{SLOT}')")


@contextmanager
def slot_of_another_plugin(database: Database, log: Path) -> Iterator[Config]:
    """Debian's server has another plugin than pgoutput, the ones from PyPI have not."""
    prepare(database, slot=False)
    database.create_slot(SLOT, "test_decoding")
    yield capture_config(database.dsn(), log)


@contextmanager
def two_phase_slot(database: Database, log: Path) -> Iterator[Config]:
    prepare(database, slot=False)
    database.run(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput', false, true)")
    yield capture_config(database.dsn(), log)


@contextmanager
def slot_in_use(database: Database, log: Path) -> Iterator[Config]:
    prepare(database)
    with replicating(database.dsn()):
        yield capture_config(database.dsn(), log)


@contextmanager
def invalidated_slot(database: Database, log: Path) -> Iterator[Config]:
    """Needs a server of its own: the setting is the server's."""
    prepare(database)
    database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        database.run("INSERT INTO unpublished (body) VALUES ('x')", "SELECT pg_switch_wal()")
    database.run("CHECKPOINT")
    assert database.value("SELECT wal_status FROM pg_replication_slots") == "lost"
    yield capture_config(database.dsn(), log)


@contextmanager
def missing_publication(database: Database, log: Path) -> Iterator[Config]:
    prepare(database)
    yield capture_config(database.dsn(), log, publication="misspelt")


@contextmanager
def role_without_replication(database: Database, log: Path) -> Iterator[Config]:
    prepare(database)
    database.run("DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN")
    try:
        yield capture_config(database.dsn("plain"), log)
    finally:
        database.run("DROP ROLE plain")


RIGHT_PASSWORD = "r1ght-s3cret"
WRONG_PASSWORD = "wr0ng-s3cret"


@contextmanager
def wrong_password(database: Database, log: Path) -> Iterator[Config]:
    """Needs a server of its own, which is gone with the role."""
    prepare(database)
    database.run(f"CREATE ROLE guarded LOGIN REPLICATION PASSWORD '{RIGHT_PASSWORD}'")
    yield capture_config(database.dsn("guarded", password=WRONG_PASSWORD), log)


# --- the log's directory --------------------------------------------------------------------------


def somebodys_files(log: Path) -> None:
    log.mkdir()
    (log / "thesis.txt").write_text("years of work")


def somebodys_log_json(log: Path) -> None:
    log.mkdir()
    (log / "log.json").write_text('{"level": "info"}')


def not_json(log: Path) -> None:
    log.mkdir()
    (log / "log.json").write_bytes(b"\xff\x00 not JSON")


@contextmanager
def foreign_directory(database: Database, log: Path) -> Iterator[Config]:
    prepare(database)
    somebodys_files(log)
    yield capture_config(database.dsn(), log)


@contextmanager
def folder_open_to_others(database: Database, log: Path) -> Iterator[Config]:
    prepare(database)
    log.mkdir()
    log.chmod(0o777)
    yield capture_config(database.dsn(), log)


def write_a_log(database: Database, log: Path) -> None:
    """A log that capture has written."""
    with capturing(capture_config(database.dsn(), log)), database.connect() as connection:
        insert_items(connection, 10)
        Mirror(log).must_equal(database)


@contextmanager
def log_of_another_database(database: Database, log: Path) -> Iterator[Config]:
    prepare(database)
    write_a_log(database, log)
    with Database(database.server, "t_its_neighbour") as neighbour:
        prepare(neighbour, slot=False)
        neighbour.create_slot("neighbour")
        yield capture_config(neighbour.dsn(), log, slot="neighbour")
