"""A query that is killed again and again, and started again from its checkpoint."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from penstock.changelog.maintenance import prune
from penstock.changelog.settings import LogSettings, RetentionSettings
from support.applications import APPS, Application, application
from support.beside import beside
from support.notes import NotesLog
from support.repeats import SOAK, repeats
from support.waiting import eventually


def test_a_query_killed_at_random_moments_under_load_sees_each_change_once(tmp_path: Path) -> None:
    # M5.1
    kills = repeats(1, soak=20)
    chance = random.Random(4)
    directory = tmp_path / "query"
    (directory / "batches").mkdir(parents=True)
    (directory / "repeated").mkdir()
    with NotesLog(tmp_path / "log", LogSettings(segment_bytes=20_000)) as log:
        log.insert(10)
        with written_all_the_time(log, directory):
            for number in range(kills):
                with query(log, directory, "default") as running:
                    # A batch is out and Spark has not noted it; or in the midst of the next one; or
                    # now and then before there is any.
                    if number % 5 < 4:
                        await_batches(running, directory, more=chance.randrange(1, 4))
                    if number % 2:
                        time.sleep(chance.uniform(0, 0.5))
                    assert running.is_running(), running.said()
        with query(log, directory, "availableNow") as running:
            running.succeeded(within_s=120)

    files = sorted((directory / "batches").glob("*.json"), key=lambda file: int(file.stem))
    assert [int(file.stem) for file in files] == list(range(len(files)))
    rows = [tuple(row) for file in files for row in json.loads(file.read_text())]
    assert Counter(number for _, _, number in rows) == Counter(range(log.written))
    assert len({(version, seq) for version, seq, _ in rows}) == len(rows)
    assert rows == sorted(rows), "and in the order of the commits"
    repeated = [file.read_text() for file in (directory / "repeated").iterdir()]
    assert set(repeated) <= {"same"}, "a batch that comes again holds what it held before"
    assert repeated or not SOAK, "of so many kills one is between a batch and Spark's note of it"


@contextmanager
def query(log: NotesLog, directory: Path, trigger: str) -> Iterator[Application]:
    """Killed at the end of the block, with all of its processes."""
    started = directory / "started"
    started.unlink(missing_ok=True)
    command = [sys.executable, APPS / "restarts.py", log.path, directory, trigger]
    with application(command, directory.parent) as running:
        eventually(
            lambda: started.exists() or not running.is_running(), "the query starts", within_s=120
        )
        yield running


def await_batches(running: Application, directory: Path, *, more: int) -> None:
    def batches() -> int:
        return len(list((directory / "batches").glob("*.json")))

    goal = batches() + more
    eventually(
        lambda: batches() >= goal or not running.is_running(), f"{more} batches", within_s=120
    )


def written_all_the_time(log: NotesLog, directory: Path) -> AbstractContextManager[None]:
    """Small transactions without end, and retention, which may take all that was applied."""

    def write(done: threading.Event) -> None:
        chance = random.Random(5)
        while not done.wait(chance.uniform(0, 0.2)):
            log.insert(chance.randrange(1, 12))
            # Only who has begun is known to the log.
            if (directory / "batches" / "0.json").exists():
                prune(log.writer, RetentionSettings(min_age_s=0))

    return beside(write)
