"""`penstock reset` and `penstock verify` where they work: what they print, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import app
from penstock.config import load
from penstock.errors import InputUnfit, PartitionDiffers
from penstock.names import TableName
from penstock.ops.setup import setup
from penstock.pipelines import seeding, verifying
from penstock.pipelines.grouping_told import Grouping
from penstock.pipelines.source_rows import Truth
from penstock.pipelines.truth import true_sums
from support.capturing import capturing
from support.database import Database
from support.locks import waits_for_lock
from support.targets import with_tables
from support.toml import write_toml
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT

COUNTS = {
    "name": "counts",
    "sources": ["notifications"],
    "dimensions": ["service", "status"],
    "targets": ["stats"],
}
# Without seeding there is no truth to compare with.
SINCE = {**COUNTS, "name": "since", "targets": ["since"], "seed": False}


@pytest.fixture
def file(database18: Database, tmp_path: Path) -> Iterator[Path]:
    """The configuration, while capture runs. No Spark: the server counts plain columns itself."""
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, service text, status text)",
        "INSERT INTO notifications VALUES (1, 's', 'a'), (2, 's', 'a'), (3, '[red]', NULL)",
        "ALTER TABLE notifications REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE notifications",
    )
    columns = "(service text, status text, count bigint NOT NULL DEFAULT 0)"
    with_tables(database18, *(f"CREATE TABLE {name} {columns}" for name in ("stats", "since")))
    database18.create_slot(SLOT)
    settings = {
        "source": {
            "dsn": database18.dsn(),
            "slot": SLOT,
            "publication": PUBLICATION,
            "tables": ["notifications"],
        },
        "log": {"path": tmp_path / "log"},
        "aggregate": [COUNTS, SINCE],
    }
    file = write_toml(tmp_path / "penstock.toml", settings)
    with capturing(load(file)) as running:
        running.connected()
        yield file


def command(file: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--config", str(file)])


def test_reset_seeds_or_empties_and_says_so(database18: Database, file: Path) -> None:  # M5.5
    done = command(file, "reset", "counts")
    assert done.exit_code == 0, done.output
    lsn = database18.value("SELECT applied_lsn::text FROM penstock.progress")
    assert done.stdout == f"counts is seeded at {lsn}, with 2 combinations\n"
    # Progress does not mix with results. M7.1
    assert done.stderr == "  3 rows read\n"
    assert database18.value("SELECT sum(count) FROM stats") == 3
    # Again, after somebody has spoilt it.
    database18.run("UPDATE stats SET count = 9")
    assert command(file, "reset", "counts").exit_code == 0
    assert database18.value("SELECT sum(count) FROM stats") == 3
    done = command(file, "reset", "since")
    assert done.exit_code == 0, done.output
    assert "since is empty, and counts what commits after" in done.stdout
    assert done.stderr == ""
    assert database18.value("SELECT count(*) FROM since") == 0


@pytest.mark.parametrize("where", ["notifications", "stats"], ids=["it reads", "it writes"])
def test_a_reset_that_is_killed_leaves_all_as_it_was_and_is_done_again(
    database18: Database, file: Path, where: str
) -> None:  # M5.5
    assert command(file, "reset", "counts").exit_code == 0
    database18.run("INSERT INTO notifications VALUES (4, 's', 'a')")
    words = [sys.executable, "-m", "penstock", "reset", "counts", "--config", str(file)]
    with database18.connect(autocommit=False) as other:
        other.execute(f"LOCK TABLE {where}".encode())
        with subprocess.Popen(words) as resetting:
            eventually(lambda: waits_for_lock(database18), "it waits", within_s=30)
            resetting.kill()
    eventually(
        lambda: not database18.rows("SELECT FROM pg_replication_slots WHERE temporary"),
        "its slot is gone",
    )
    assert database18.value("SELECT state FROM penstock.progress") == "seeding"
    assert database18.value("SELECT sum(count) FROM stats") == 3
    # The server may take the killed one for alive a moment longer.
    eventually(lambda: command(file, "reset", "counts").exit_code == 0, "it is reset")
    assert database18.value("SELECT sum(count) FROM stats") == 4
    assert command(file, "verify", "counts").exit_code == 0


def test_verify_lists_differences_and_ends_with_1(database18: Database, file: Path) -> None:
    # M5.6, on a database where nothing happens
    command(file, "reset", "counts")
    fine = command(file, "verify")
    assert fine.exit_code == 0, fine.output
    assert ": 2 rows, 0 differences\n" in fine.stdout
    assert "  3 rows read\n" in fine.stderr
    assert "rows read" not in fine.stdout
    # One that cannot be verified is left out, unless it is asked for.
    assert "since cannot be verified: it was not seeded: left out" in fine.stderr
    assert command(file, "verify", "since").exception is not None

    database18.run("UPDATE stats SET count = 7 WHERE service = 's'", "DELETE FROM stats WHERE true")
    database18.run("INSERT INTO stats VALUES ('s', 'a', 7)")
    wrong = command(file, "verify", "counts")
    assert wrong.exit_code == 1
    assert "public.stats: count of service s, status a is 7, should be 2" in wrong.stdout
    # What stands in a row is text, not markup.
    assert "public.stats: count of service [red], status NULL is 0, should be 1" in wrong.stdout
    assert ": 1 rows, 2 differences\n" in wrong.stdout


def test_who_waits_while_the_server_groups_is_told_so(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.5, M5.6, M7.1
    def slowly(*arguments: Any) -> Truth:
        *_, on_grouping = arguments
        for about_rows, for_s in ((120_000_000, 5.2), (None, 10.4)):
            on_grouping(Grouping(TableName("public", "notifications"), about_rows, for_s))
        return true_sums(*arguments)

    for module in (seeding, verifying):
        monkeypatch.setattr(module, "true_sums", slowly)
    told = (
        "  public.notifications: being grouped for 5 s, about 120,000,000 rows\n"
        "  public.notifications: being grouped for 10 s\n"
        "  3 rows read\n"
    )
    assert command(file, "reset", "counts").stderr == told
    assert command(file, "verify", "counts").stderr.endswith(told)
    assert "grouped" not in command(file, "verify", "counts", "--json").output


def test_verify_as_json_and_repair(database18: Database, file: Path) -> None:  # M5.6
    command(file, "reset", "counts")
    database18.run("UPDATE stats SET count = 7 WHERE service = 's'")
    assert command(file, "verify").exit_code == 1
    as_json = command(file, "verify", "--json", "--repair")
    # Nothing is wrong any more, and what was wrong is told.
    assert as_json.exit_code == 0
    assert "rows read" not in as_json.stderr
    (found,) = json.loads(as_json.stdout)["aggregates"]
    assert (found["aggregate"], found["rows"], found["parked"]) == ("counts", 2, 0)
    assert found["repaired"] is True
    assert found["differences"] == [
        {
            "target": "public.stats",
            "key": {"service": "s", "status": "a"},
            "measure": "count",
            "expected": "2",
            "found": "7",
        }
    ]
    assert database18.value("SELECT sum(count) FROM stats") == 3
    again = command(file, "verify", "--json")
    assert again.exit_code == 0
    (found,) = json.loads(again.stdout)["aggregates"]
    assert (found["differences"], found["repaired"]) == ([], False)


@pytest.fixture
def parted(database18: Database, tmp_path: Path) -> Iterator[Path]:
    """As `file`, of a table with partitions, all of which write what it does."""
    database18.run(
        "CREATE TABLE notifications (id int, service text, status text)"
        " PARTITION BY LIST (service)",
        "CREATE TABLE north PARTITION OF notifications FOR VALUES IN ('n')",
        "ALTER TABLE notifications REPLICA IDENTITY FULL",
        "INSERT INTO notifications VALUES (1, 'n', 'a')",
    )
    given = {"dsn": database18.dsn(), "tables": ["notifications"]}
    settings = {"source": given, "log": {"path": tmp_path / "log"}, "aggregate": [COUNTS, SINCE]}
    file = write_toml(tmp_path / "penstock.toml", settings)
    setup(load(file))
    with capturing(load(file)) as running:
        running.connected()
        yield file


LACKING = (
    "partitions of public.notifications have another replica identity than their root, so {} would "
    "go wrong: UPDATE and DELETE of public.south do not write the old service, status to the WAL"
)


def test_a_partition_without_its_identity_keeps_reset_from_seeding_and_is_a_warning_of_verify(
    database18: Database, parted: Path
) -> None:  # M4.2, M5.6, M7.1
    for name in ("counts", "since"):
        assert command(parted, "reset", name).exit_code == 0
    database18.run("CREATE TABLE south PARTITION OF notifications FOR VALUES IN ('s')")
    database18.run("INSERT INTO notifications VALUES (2, 's', 'a')")
    alter = "ALTER TABLE public.south REPLICA IDENTITY FULL"
    for name in ("counts", "since"):
        done = command(parted, "reset", name)
        assert isinstance(done.exception, PartitionDiffers)
        assert done.exception.problem == LACKING.format(f"aggregate {name}")
        assert alter in done.exception.remedy
        assert done.output == ""
    done = command(parted, "verify")
    assert done.exit_code == 0, done.output
    # As it is called here.
    assert done.stderr.splitlines()[:2] == [
        f"warning: {LACKING.format('aggregate counts')}",
        f"  fix: Run `penstock setup --config {parted}`, or: {alter}",
    ]
    as_json = command(parted, "verify", "counts", "--json")
    assert as_json.exit_code == 0
    (warning,) = json.loads(as_json.stdout)["warnings"]
    assert (warning["kind"], warning["problem"]) == (
        "PartitionDiffers",
        LACKING.format("aggregate counts"),
    )
    assert alter in warning["remedy"]
    database18.run("UPDATE stats SET count = 7")
    wrong = command(parted, "verify", "counts")
    assert wrong.exit_code == 1
    assert "warning: " in wrong.stderr
    database18.run(alter)
    mended = command(parted, "verify", "counts", "--json", "--repair")
    assert "warning: " not in mended.stderr
    assert json.loads(mended.stdout)["warnings"] == []


def test_what_comes_under_another_name_keeps_reset_from_seeding_too(
    database18: Database, parted: Path
) -> None:  # M4.6
    database18.run("ALTER PUBLICATION penstock SET (publish_via_partition_root = false)")
    error = command(parted, "reset", "counts").exception
    assert isinstance(error, InputUnfit)
    assert "sends under the names of its partitions" in error.problem
    assert "SET (publish_via_partition_root = true)" in error.remedy


def test_what_is_not_sent_at_all_keeps_reset_from_seeding_and_is_a_warning_of_verify(
    database18: Database, file: Path
) -> None:  # M4.6
    assert command(file, "reset", "counts").exit_code == 0
    database18.run(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE notifications")
    error = command(file, "reset", "counts").exception
    assert isinstance(error, InputUnfit)
    assert f'which publication "{PUBLICATION}" does not hold' in error.problem
    done = command(file, "verify", "counts")
    assert done.exit_code == 0, done.output
    assert f'which publication "{PUBLICATION}" does not hold' in done.stderr
    assert f"`penstock setup --config {file}`, which adds it" in done.stderr


def test_a_repair_that_a_target_refuses_says_that_it_is_parked(
    database18: Database, file: Path
) -> None:  # M5.4, M5.6
    command(file, "reset", "counts")
    database18.run(
        "DELETE FROM stats WHERE service = '[red]'",
        "ALTER TABLE stats ADD CHECK (service <> '[red]')",
    )
    done = command(file, "verify", "--repair")
    assert done.exit_code == 0
    assert "1 differences, corrected, 1 keys parked" in done.stdout
    assert ", 0 differences, 1 keys parked\n" in command(file, "verify").stdout
