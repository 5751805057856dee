"""`penstock capture` and `penstock log`, as an operator runs them, on a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from penstock.changelog import consumers
from penstock.changelog.reader import LogReader
from penstock.lsn import Lsn
from support.commands import penstock
from support.database import Database
from support.replication import streamed
from support.waiting import eventually

PENSTOCK = str(Path(sys.executable).parent / "penstock")


@pytest.fixture
def config(database18: Database, tmp_path: Path) -> Path:
    database18.run("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    file = tmp_path / "penstock.toml"
    file.write_text(
        f'[source]\ndsn = "{database18.dsn()}"\ntables = ["orders"]\nslot = "commands"\n'
        'publication = "commands"\n[log]\nmin_age_h = 0\n'
    )
    assert penstock("setup", "-c", str(file)).returncode == 0
    return file


@contextmanager
def running_capture(
    config: Path, stderr: int | IO[str] = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([PENSTOCK, "capture", "-c", str(config)], stderr=stderr, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def reached(config: Path, database: Database, *, within_s: float = 15.0) -> LogReader:
    """The log, once it is complete up to now."""
    now = database.wal_position()
    folder = config.parent / "penstock-log"
    eventually(lambda: (folder / "head").exists(), "a log")
    reader = LogReader(folder)
    assert reader.wait(Lsn(now - 1), within_s)
    return reader


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_capture_ends_cleanly_with_everything_confirmed(
    config: Path, database18: Database, number: signal.Signals
) -> None:
    with running_capture(config) as process:
        database18.run("INSERT INTO orders SELECT g, 'new' FROM generate_series(1, 1000) g")
        reader = reached(config, database18)
        asked = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=10)
        assert time.monotonic() - asked < 2
        assert process.returncode == 0
    assert "Traceback" not in said
    assert "following" in said
    assert database18.confirmed("commands") == reader.end().lsn


def test_capture_that_cannot_run_says_why(config: Path, database18: Database) -> None:  # M7.3
    database18.run("SELECT pg_drop_replication_slot('commands')")
    done = penstock("capture", "-c", str(config))
    assert done.returncode == 2
    assert 'replication slot "commands" does not exist' in done.stderr
    assert "penstock setup" in done.stderr


def test_a_second_capture_waits_and_takes_over_when_the_first_has_ended(
    config: Path, database18: Database
) -> None:
    # M7.3
    said = config.parent / "second.err"
    with running_capture(config) as first, said.open("w") as stderr:
        reached(config, database18)
        with running_capture(config, stderr) as second:
            waits = 'reason=\'replication slot "commands" is in use by process'
            eventually(lambda: waits in said.read_text(), "the second one says that it waits")
            database18.run("INSERT INTO orders VALUES (1, 'by the first')")
            reached(config, database18)
            assert (first.poll(), second.poll()) == (None, None)
            assert "following" not in said.read_text()
            first.send_signal(signal.SIGTERM)
            first.communicate(timeout=20)
            assert first.returncode == 0
            database18.run("INSERT INTO orders VALUES (2, 'by the second')")
            reached(config, database18, within_s=60)
            assert second.poll() is None
            assert "following" in said.read_text()
            assert said.read_text().count(waits) == 1, "not with every attempt"
    rows = [change["new"]["status"] for transaction in dumped(config) for change in transaction]
    assert rows == ["by the first", "by the second"]


def dumped(config: Path, *options: str) -> list[list[dict[str, Any]]]:
    """The changes of each transaction, as `penstock log dump` shows them."""
    lines = penstock("log", "dump", "-c", str(config), "--json", *options).stdout.splitlines()
    return [json.loads(line)["changes"] for line in lines]


def captured(config: Path, database: Database) -> LogReader:
    """A log with an insert, an update, a delete, and a streamed transaction with a savepoint that
    was rolled back; when that one begins, the others are durable."""
    with running_capture(config) as process:
        eventually(lambda: (config.parent / "penstock-log" / "head").exists(), "a log")
        database.run(
            "INSERT INTO orders VALUES (1, 'new'), (2, NULL)",
            "UPDATE orders SET status = 'paid' WHERE id = 1",
            "DELETE FROM orders WHERE id = 2",
        )
        reached(config, database)
        with database.connect(autocommit=False) as connection:
            connection.execute("INSERT INTO orders VALUES (10, 'before')")
            with connection.transaction(force_rollback=True):
                connection.execute(
                    "INSERT INTO orders"
                    " SELECT n, repeat('x', 100) FROM generate_series(100, 2099) AS n"
                )
                # While it is open: else the server would know by then, and leave them out itself.
                eventually(lambda: streamed(database, "commands") >= 1, "it is streamed")
            connection.execute("INSERT INTO orders VALUES (11, 'after')")
        reader = reached(config, database)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    return reader


def test_info_tells_source_position_size_and_consumers(config: Path, database18: Database) -> None:
    reader = captured(config, database18)
    consumers.register(reader.storage, "dashboard", str(reader.identity.log_id), reader.start().lsn)
    read = json.loads(penstock("log", "info", "-c", str(config), "--json").stdout)
    assert read["id"] == str(reader.identity.log_id)
    assert read["database"] == database18.name
    assert read["complete_lsn"] == str(reader.end().lsn)
    assert read["bytes"] > 0
    assert [consumer["name"] for consumer in read["consumers"]] == ["dashboard"]
    words = penstock("log", "info", "-c", str(config)).stdout
    assert str(reader.end().lsn) in words
    assert "dashboard" in words


def test_dump_prints_transactions_fragments_and_changes(config: Path, database18: Database) -> None:
    captured(config, database18)
    words = penstock("log", "dump", "-c", str(config)).stdout
    for expected in (
        "2 changes",
        "fragment in segment 1",
        'insert public.orders  new id="1" status="new"',
        'insert public.orders  new id="2" status=NULL',
        'update public.orders  new id="1" status="paid"',
        'delete public.orders  old id="2"',
    ):
        assert expected in words
    lines = penstock("log", "dump", "-c", str(config), "--json").stdout.splitlines()
    read = [json.loads(line) for line in lines]
    assert [transaction["change_count"] for transaction in read] == [2, 1, 1, 2]
    assert read[0]["changes"][1] == {
        "seq": 1,
        "kind": "insert",
        "table": "public.orders",
        "new": {"id": "2", "status": None},
    }
    middle = read[1]["commit_lsn"]
    after = penstock("log", "dump", "-c", str(config), "--json", "--from", middle).stdout
    assert [json.loads(line)["commit_lsn"] for line in after.splitlines()] == [
        transaction["commit_lsn"] for transaction in read[2:]
    ]
    before = penstock("log", "dump", "-c", str(config), "--json", "--to", middle).stdout
    assert [json.loads(line)["commit_lsn"] for line in before.splitlines()] == [
        transaction["commit_lsn"] for transaction in read[:2]
    ]


def test_dump_shows_what_survived_of_a_streamed_transaction_and_nothing_else(
    config: Path, database18: Database
) -> None:
    # M3.5
    captured(config, database18)
    assert dumped(config)[-1] == [
        {
            "seq": seq,
            "kind": "insert",
            "table": "public.orders",
            "new": {"id": number, "status": status},
        }
        for seq, (number, status) in enumerate([("10", "before"), ("11", "after")])
    ]


def test_dump_follows_a_log_that_grows(config: Path, database18: Database) -> None:
    with running_capture(config):
        reached(config, database18)
        follower = subprocess.Popen(
            [PENSTOCK, "log", "dump", "-f", "--json", "-c", str(config)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            for number in (1, 2, 3):
                database18.run(f"INSERT INTO orders VALUES ({number}, 'new')")
                assert follower.stdout is not None
                change = json.loads(follower.stdout.readline())["changes"][0]
                assert change["new"]["id"] == str(number)
        finally:
            follower.send_signal(signal.SIGINT)
            follower.communicate(timeout=10)


def test_check_finds_no_damage_or_names_it(config: Path, database18: Database) -> None:  # M3.4
    reader = captured(config, database18)
    read = json.loads(penstock("log", "check", "-c", str(config), "--json").stdout)
    assert (read["transactions"], read["changes"], read["damage"]) == (4, 6, None)
    segment = config.parent / "penstock-log" / "segments" / "0000000001.seg"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    done = penstock("log", "check", "-c", str(config))
    assert done.returncode == 2
    assert "is damaged at byte" in done.stderr
    assert str(reader.identity.log_id) not in done.stderr


def test_prune_removes_what_is_old_and_applied_and_leaves_the_rest_readable(
    config: Path, database18: Database
) -> None:
    # M3.8: so small that each flush fills a segment, and not pruned by capture itself.
    text = config.read_text() + "segment_mib = 0.0002\n"
    config.write_text(text.replace("min_age_h = 0\n", "min_age_h = 24\n"))
    reader = captured(config, database18)
    before, transactions = segment_sizes(config), dumped(config)
    assert pruned(config)["segments"] == [], "all of it is young"
    config.write_text(text)
    last = penstock("log", "dump", "-c", str(config), "--json").stdout.splitlines()[-1]
    all_but_one = Lsn(Lsn.parse(json.loads(last)["commit_lsn"]) - 1)
    log_id = str(reader.identity.log_id)
    consumers.register(reader.storage, "slow", log_id, reader.start().lsn)
    consumers.register(reader.storage, "quick", log_id, all_but_one)
    assert pruned(config)["segments"] == [], "a consumer needs it"
    assert segment_sizes(config) == before
    assert penstock("log", "consumers", "-c", str(config), "--forget", "slow").returncode == 0
    told = pruned(config)
    left = segment_sizes(config)
    gone = {number: size for number, size in before.items() if number not in left}
    assert gone
    assert min(left) > max(gone)
    assert told["segments"] == sorted(gone)
    assert told["freed_bytes"] == sum(gone.values())
    assert told["up_to_lsn"] == str(reader.segment(min(left)).header().base_lsn)
    assert told["full"] is False
    kept = dumped(config)
    assert 1 <= len(kept) < len(transactions)
    assert kept == transactions[-len(kept) :], "what the consumer still needs"
    checked = json.loads(penstock("log", "check", "-c", str(config), "--json").stdout)
    assert (checked["transactions"], checked["damage"]) == (len(kept), None)
    assert pruned(config)["segments"] == [], "nothing more can go"


def pruned(config: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(penstock("log", "prune", "-c", str(config), "--json").stdout)
    return told


def segment_sizes(config: Path) -> dict[int, int]:
    """By number."""
    files = (config.parent / "penstock-log" / "segments").iterdir()
    return {int(file.stem): file.stat().st_size for file in files}


def test_consumers_are_listed_and_forgotten(config: Path, database18: Database) -> None:
    reader = captured(config, database18)
    consumers.register(reader.storage, "old", str(reader.identity.log_id), reader.end().lsn)
    shown = penstock("log", "consumers", "-c", str(config)).stdout
    assert "old" in shown
    assert penstock("log", "consumers", "-c", str(config), "--forget", "old").returncode == 0
    done = penstock("log", "consumers", "-c", str(config), "--forget", "old")
    assert done.returncode == 2
    assert 'no consumer "old" is registered' in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "--path", "nowhere"], "there is no change log in nowhere"),
        (["check", "--path", "nowhere"], "there is no change log in nowhere"),
        (["dump", "--path", "nowhere"], "there is no change log in nowhere"),
        (["consumers", "--path", "nowhere"], "there is no change log in nowhere"),
    ],
)
def test_a_log_that_is_not_there_is_named(arguments: list[str], message: str) -> None:  # M7.3
    done = penstock("log", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    as_json = json.loads(penstock("log", *arguments, "--json").stdout)
    assert as_json["error"]["kind"] == "LogMissing"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--from", "nonsense", "is not an LSN"),
        ("--to", "nonsense", "is not an LSN"),
    ],
)
def test_a_bad_position_is_named(
    config: Path, database18: Database, option: str, value: str, message: str
) -> None:  # M7.3
    captured(config, database18)
    done = penstock("log", "dump", "-c", str(config), option, value)
    assert done.returncode == 2
    assert message in done.stderr
