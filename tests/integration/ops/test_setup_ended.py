"""A set-up that has to wait, or is ended meanwhile, leaves nothing half-made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any

import psycopg
import pytest

from penstock.errors import (
    SetupBlocked,
    SetupFailed,
)
from penstock.interrupts import Interrupts
from penstock.ops.setup import Patience, Runner, Session, setup
from penstock.ops.steps import SOURCE, Plan, Step
from penstock.postgres import waiting
from penstock.postgres.waiting import Blocker
from support.database import Database
from support.ops import QUICK, config_for, do, on_18, replica_identities, slots
from support.versions import NEWEST
from support.waiting import eventually

PENSTOCK = str(Path(sys.executable).parent / "penstock")


def test_a_slot_waits_for_open_transactions_names_them_and_leaves_nothing_behind(
    database: Database,
) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    waited: list[tuple[Blocker, ...]] = []
    with psycopg.connect(database.dsn(application_name="batch job")) as writer:
        writer.execute("INSERT INTO orders VALUES (1)")
        pid = writer.info.backend_pid
        with pytest.raises(SetupBlocked) as caught:
            setup(config_for(database), on_wait=waited.append, patience=QUICK)
        assert f"process {pid} (batch job, user postgres" in caught.value.problem
        assert caught.value.__dict__["pids"] == (pid,)
        assert [blocker.pid for blocker in waited[0]] == [pid]
        assert slots(database) == []
        writer.commit()
    (step,) = do(database).steps
    assert step.kind == "create slot"
    assert slots(database) == ["penstock"]


def test_an_interrupted_set_up_leaves_no_slot(database18: Database) -> None:
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")

    def interrupt(blockers: tuple[Blocker, ...]) -> None:
        raise KeyboardInterrupt

    with psycopg.connect(database18.dsn()) as writer:
        writer.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(KeyboardInterrupt):
            setup(config_for(database18), on_wait=interrupt, patience=QUICK)
        assert slots(database18) == []


def creating(database: Database) -> bool:
    """Whether a slot is being made."""
    count = database.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND state = 'active' AND query LIKE '%pg_create_logical%' AND pid <> pg_backend_pid()"
    )
    return bool(count)


# After SIGKILL it is for the server to notice, and each version may do so differently.
@pytest.mark.parametrize(
    ("server", "number"),
    [
        *((version, signal.SIGKILL) for version in NEWEST),
        *((18, number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)),
    ],
    indirect=["server"],
)
def test_a_set_up_that_is_ended_while_it_waits_leaves_no_slot_for_later(
    database: Database, tmp_path: Path, number: signal.Signals
) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    file = tmp_path / "penstock.toml"
    file.write_text(f'[source]\ndsn = "{database.dsn()}"\ntables = ["orders"]\n')
    with psycopg.connect(database.dsn()) as writer:
        writer.execute("INSERT INTO orders VALUES (1)")
        process = subprocess.Popen(
            [PENSTOCK, "setup", "--config", str(file)], stderr=subprocess.PIPE, text=True
        )
        try:
            eventually(lambda: creating(database), "slot creation waits")
            process.send_signal(number)
            told = process.communicate(timeout=30)[1]
        finally:
            process.kill()
            process.wait()
        eventually(lambda: not creating(database), "the server stops waiting", within_s=5)
        writer.commit()
    assert slots(database) == []
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert told == (
            "interrupted; nothing was left half made, and "
            f"`penstock setup --config {file}` goes on from there\n"
        )


def test_an_interruption_before_we_begin_to_wait_is_not_lost(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the server may be at work before the thread that asked it is noted.
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")

    class Slow(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
            future = super().submit(*arguments, **named)
            if "pg_create_logical" in str(arguments):
                eventually(lambda: creating(database18), "slot creation waits")
                os.kill(os.getpid(), signal.SIGINT)
            return future

    monkeypatch.setattr(waiting, "ThreadPoolExecutor", Slow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with psycopg.connect(database18.dsn()) as writer:
            writer.execute("INSERT INTO orders VALUES (1)")
            give_way = threading.Timer(10, writer.close)
            give_way.start()
            with pytest.raises(KeyboardInterrupt):
                setup(config_for(database18))
            give_way.cancel()
            assert not writer.closed, "it ended only when the transaction did"
    finally:
        signal.signal(signal.SIGINT, before)
    assert slots(database18) == []


def test_an_interruption_just_after_the_slot_was_made_takes_it_back(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")

    def too_late(running: Lock, _: Interrupts) -> bool:
        running.acquire()
        if slots(database18):
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(waiting, "_finished", too_late)
    with pytest.raises(KeyboardInterrupt) as caught:
        do(database18)
    assert caught.value.__notes__[0].startswith("nothing was left half made")
    assert slots(database18) == []


def test_a_slot_that_another_set_up_made_meanwhile_is_not_taken_back(
    database18: Database,
) -> None:
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")
    config = config_for(database18)

    def overtake(step: Step) -> None:
        if step.kind == "create slot":
            database18.create_slot("penstock")

    with pytest.raises(SetupFailed, match="already exists"):
        setup(config, on_step=overtake, patience=QUICK)
    assert slots(database18) == ["penstock"]


@on_18
def test_a_table_lock_gives_way_to_the_application_and_names_who_holds_it(
    database: Database,
) -> None:
    database.run("CREATE TABLE orders (a int)")
    with psycopg.connect(database.dsn(application_name="report")) as busy:
        busy.execute("SELECT * FROM orders")
        with pytest.raises(SetupBlocked) as caught:
            do(database)
        assert "2 attempts of 0.4 s" in caught.value.problem
        assert f"process {busy.info.backend_pid} (report" in caught.value.problem
    assert database.value("SELECT count(*) FROM pg_publication") == 0


def test_a_lock_that_is_soon_free_is_waited_for(database18: Database) -> None:
    database18.run("CREATE TABLE orders (a int)")
    with psycopg.connect(database18.dsn()) as busy:
        busy.execute("SELECT * FROM orders")
        setup(
            config_for(database18),
            on_wait=lambda blockers: busy.rollback(),
            patience=Patience(lock_timeout_s=5, slot_deadline_s=5),
        )
    assert replica_identities(database18) == {"orders": "f"}


def test_a_slot_is_dropped_again_when_a_later_step_fails(database18: Database) -> None:
    database18.run("CREATE TABLE orders (id int PRIMARY KEY)")
    config = config_for(database18)
    with ExitStack() as stack:
        plan = setup(config, dry_run=True)
        broken = Plan((*plan.steps, Step("a later step", ("SELECT 1 / 0",))))
        sessions = {SOURCE: Session.open(config.source.conninfo, stack)}
        runner = Runner(config, sessions, lambda blockers: None, QUICK)
        with pytest.raises(SetupFailed, match="a later step: division by zero"):
            runner.run(broken, lambda step: None)
    assert slots(database18) == []
