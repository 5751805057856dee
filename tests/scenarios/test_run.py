"""`penstock run` with everything real: its processes are killed in turn and together."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from penstock.config import Config
from support.capturing import capture_config
from support.database import Database
from support.disk import small_disk
from support.jobs import caught_up
from support.notify import AGGREGATE, LIVE, SCHEMA, differences, notify_config, working
from support.oracle import Mirror
from support.processes import ProcessFamily, started
from support.repeats import SOAK
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT, insert_items, prepare

# Each costs a start of Spark. That parts which die are started again is shown without it, too.
VICTIMS = (
    ("supervisor", "java", "capture"),
    *(
        (
            ("capture", "aggregates"),
            ("aggregates",),
            ("java",),
            ("supervisor",),
            ("capture",),
            ("supervisor", "java"),
            ("supervisor", "capture", "aggregates"),
        )
        if SOAK
        else ()
    ),
)
MOMENTS = (
    "started                        part=capture",
    "started                        part=aggregates",
    *(("spark started", "first change applied after") if SOAK else ()),
)


class RunProcess(ProcessFamily):
    """`penstock run`, and the processes that it starts."""

    def __init__(
        self,
        config: Config,
        directory: Path,
        scratch: Path,
        *,
        impatient: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        super().__init__("run", config, directory, scratch, impatient=impatient, flags=flags)

    def pid(self, name: str) -> int:
        """Of the newest, for one that was killed may not have been buried yet."""
        word = {"supervisor": " run --config", "java": "SparkSubmit"}.get(name, f"part {name}")
        found = [pid for pid, line in self.family().items() if word in line]
        assert found, self.family()
        return max(found)

    def ctrl_c(self) -> int:
        self._running().send_signal(signal.SIGINT)
        return self._running().wait(30)


def test_processes_are_killed_alone_and_together_and_counts_are_right(
    database18: Database, tmp_path: Path, scratch: Path
) -> None:  # M5.3, M7.1
    database18.run(*SCHEMA)
    database18.create_slot("penstock")
    config = notify_config(database18, tmp_path / "log", AGGREGATE, LIVE)
    run = RunProcess(config, tmp_path, scratch)
    with ports_taken(), started(run):
        with working(database18, seed=5):
            followed(database18, run)
            eventually(lambda: "first change applied after" in run.all_said(), "it is told")
        for victims in VICTIMS:
            with working(database18, seed=6):
                time.sleep(0.3)
                for pid in [run.pid(name) for name in victims]:
                    os.kill(pid, signal.SIGKILL)
                if "supervisor" in victims:
                    # The others notice that they are alone; the next one waits for them.
                    run.start()
                followed(database18, run)
            followed(database18, run)
            with database18.connect() as connection:
                for target in ("ft_all", "ft_service_stats", "ft_by_date", "ft_live"):
                    assert differences(connection, target) == 0, (victims, target)
        run.stop(within_s=30)
        run.all_gone()
    assert "Traceback" not in run.all_said()
    assert "does not end" not in run.all_said()
    # What those that were killed have left was removed by those after them.
    assert list(scratch.iterdir()) == []


@contextmanager
def ports_taken() -> Iterator[None]:
    """Those that PostgreSQL, Spark and py4j would like: none of them is needed."""
    with ExitStack() as stack:
        for port in (4040, 5432, 7077, 25333, 25334):
            taken = stack.enter_context(socket.socket())
            with suppress(OSError):  # by somebody else, which will do
                taken.bind(("127.0.0.1", port))
                taken.listen()
        yield


def followed(database: Database, run: RunProcess) -> None:
    def must_run() -> None:
        assert not run.has_ended, run.said()

    caught_up(database, meanwhile=must_run)


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_each_stage_ends_everything_at_once(
    database18: Database, tmp_path: Path, scratch: Path, moment: str
) -> None:  # M7.1
    database18.run(*SCHEMA)
    database18.create_slot("penstock")
    config = notify_config(database18, tmp_path / "log", AGGREGATE)
    run = RunProcess(config, tmp_path, scratch)
    with started(run), working(database18, seed=7):
        eventually(lambda: moment in run.all_said() or run.has_ended, moment, within_s=90)
        begun = time.monotonic()
        assert run.ctrl_c() == 0, run.said()
        assert time.monotonic() - begun < 15
        run.all_gone()
    assert "Traceback" not in run.all_said()
    assert list(scratch.iterdir()) == []


def test_a_second_run_is_refused_and_the_first_goes_on(
    database18: Database, tmp_path: Path, scratch: Path
) -> None:  # M7.3
    prepare(database18)
    first = RunProcess(capture_config(database18.dsn(), tmp_path / "log"), tmp_path, scratch)
    (tmp_path / "second").mkdir()
    second = RunProcess(
        capture_config(database18.dsn(), tmp_path / "log"),
        tmp_path / "second",
        scratch,
        impatient=True,
    )
    with started(first):
        eventually(lambda: "following" in first.all_said(), "it follows")
        with started(second):
            assert "another penstock run works on the change log" in second.failure()
            # It was told before, for it takes a while.
            assert "waiting for another penstock run" in second.all_said()
        assert not first.has_ended
        first.stop()
    assert "started" not in second.all_said()


def test_a_full_disk_is_waited_for(database18: Database, tmp_path: Path, scratch: Path) -> None:
    # M7.3, M1.8
    prepare(database18)
    with small_disk(tmp_path / "disk", mib=3) as disk:
        # Compressed, all of it would fit.
        settings = {"segment_mib": 0.5, "compression": "none"}
        config = capture_config(database18.dsn(), disk.path / "log", log=settings)
        run = RunProcess(config, tmp_path, scratch)
        with started(run):
            eventually(lambda: "following" in run.all_said(), "it follows")
            with database18.connect() as connection:
                for _ in range(4):
                    insert_items(connection, 5_000)
            eventually(lambda: "No space left" in run.all_said(), "it is told", within_s=60)
            assert not run.has_ended
            disk.resize(64)
            Mirror(disk.path / "log").must_equal(database18)
            run.stop()


def dropped_slot(database: Database) -> None:
    """As an operator would who wants to free WAL."""

    def is_gone() -> bool:
        database.run(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{SLOT}'"
        )
        with suppress(psycopg.errors.ObjectInUse):
            database.run(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                f" WHERE slot_name = '{SLOT}'"
            )
        return not database.rows("SELECT slot_name FROM pg_replication_slots")

    eventually(is_gone, "the slot is gone")


def dropped_publication(database: Database) -> None:
    database.run(f"DROP PUBLICATION {PUBLICATION}")
    with database.connect() as connection:
        insert_items(connection, 1)


@pytest.mark.parametrize("trouble", [dropped_slot, dropped_publication])
def test_run_ends_when_capture_needs_a_person_and_says_the_same_when_started_again(
    database: Database, tmp_path: Path, scratch: Path, trouble: Callable[[Database], None]
) -> None:  # M7.3, M3.7
    prepare(database)
    run = RunProcess(capture_config(database.dsn(), tmp_path / "log"), tmp_path, scratch)
    with started(run):
        eventually(lambda: "following" in run.all_said(), "it follows")
        with database.connect() as connection:
            insert_items(connection, 3)
        Mirror(tmp_path / "log").must_equal(database)
        trouble(database)
        run.failure(within_s=30)
        run.start()
        run.failure(within_s=30)
    _, *advices = run.all_said().split("fix: ")
    assert len(advices) == 2
    for advice in advices:
        # What set-up refuses is not advised, and the folder is named.
        assert "penstock teardown" in advice
        assert f"move {tmp_path / 'log'} away" in advice
    assert "Traceback" not in run.all_said()


def test_one_that_keeps_going_stays_up_and_captures_again_when_it_can(
    database18: Database, tmp_path: Path, scratch: Path
) -> None:  # M7.3
    prepare(database18)
    config = capture_config(database18.dsn(), tmp_path / "log")
    run = RunProcess(config, tmp_path, scratch, flags=["--keep-going"])
    with started(run):
        eventually(lambda: "following" in run.all_said(), "it follows")
        database18.run(f"ALTER PUBLICATION {PUBLICATION} RENAME TO elsewhere")
        # A change that cannot be decoded would need a new log.
        database18.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        eventually(lambda: "again_in_s" in run.all_said(), "it is tried again")
        assert not run.has_ended
        database18.run(f"ALTER PUBLICATION elsewhere RENAME TO {PUBLICATION}")
        with database18.connect() as connection:
            insert_items(connection, 3)
        Mirror(tmp_path / "log").must_equal(database18)
        run.stop()


def test_aggregates_apply_what_is_in_the_log_before_run_ends(
    database18: Database, tmp_path: Path, scratch: Path
) -> None:  # M7.3, M5.3
    database18.run(*SCHEMA)
    database18.create_slot("penstock")
    run = RunProcess(notify_config(database18, tmp_path / "log", LIVE), tmp_path, scratch)
    with started(run):
        with working(database18, seed=8):
            followed(database18, run)
        followed(database18, run)
        # Spark stands still while more is captured, and while capture fails.
        java = run.pid("java")
        os.kill(java, signal.SIGSTOP)
        with working(database18, seed=9):
            time.sleep(0.5)
        committed = database18.wal_position()
        eventually(lambda: database18.confirmed("penstock") >= committed, "it is captured")
        database18.run("DROP PUBLICATION penstock", "SELECT pg_current_wal_lsn()")
        database18.run("INSERT INTO notifications SELECT * FROM notifications LIMIT 0")
        database18.run("UPDATE notifications SET price = price")
        eventually(lambda: "aggregates apply what is in the log first" in run.all_said(), "drains")
        assert "dropped while capture was running" in run.all_said()
        assert not run.has_ended
        os.kill(java, signal.SIGCONT)
        said = run.failure(within_s=60)
        run.all_gone()
    assert "drained: all that is in the log is applied" in run.all_said()
    assert "error: publication" in said
    # That update changed no count.
    with database18.connect() as connection:
        assert differences(connection, "ft_live") == 0
    assert "Traceback" not in run.all_said()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "capture"])
def test_a_hang_up_ends_it_cleanly_and_does_not_look_like_success(
    database18: Database, tmp_path: Path, scratch: Path, command: str
) -> None:  # M7.3
    prepare(database18)
    config = capture_config(database18.dsn(), tmp_path / "log")
    service = ProcessFamily(command, config, tmp_path, scratch)
    with started(service):
        eventually(lambda: "following" in service.all_said(), "it follows")
        assert service.hang_up() == 128 + signal.SIGHUP
        service.all_gone()
    assert "ended by SIGHUP" in service.all_said()
    assert "There is no reload" in service.all_said()
    assert "Traceback" not in service.all_said()
