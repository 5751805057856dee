"""The supervisor with real processes that die as a test tells them to."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock import lasting_state
from penstock.errors import LogInUse, PenstockError
from penstock.interrupts import Interrupts
from penstock.run import supervisor as supervising
from penstock.run.supervisor import Supervisor
from support import parts
from support.waiting import eventually

FOLLOWING = {"event": "following", "level": "info"}
FAILED = {"event": "failed", "problem": "no slot", "remedy": "Run setup", "level": "error"}


class Running:
    """A supervisor in a thread."""

    def __init__(
        self, script: dict[str, list[list[dict[str, Any]]]], directory: Path, *, keep_going: bool
    ) -> None:
        self.directory = directory
        (directory / "lives").mkdir(exist_ok=True)
        file = directory / "script.json"
        file.write_text(json.dumps(script))
        self.heard: list[tuple[str, str]] = []
        self.supervisor = Supervisor(
            None,
            directory / "log",
            aggregates="aggregates" in script,
            keep_going=keep_going,
            watch=lambda part, event: self.heard.append((part, event["event"])),
            program=(sys.executable, parts.__file__, str(file), str(directory / "lives")),
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def lives(self, part: str) -> list[int]:
        """The numbers of the processes that were."""
        files = sorted((self.directory / "lives").glob(f"{part}.*"))
        return [int(text) for text in (file.read_text() for file in files) if text]

    def ended(self, *, by_itself: bool = False) -> BaseException | None:
        if not by_itself:
            self.supervisor.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.error

    def _run(self) -> None:
        try:
            self.supervisor.run(Interrupts())
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.error = error


@pytest.fixture
def run(
    tmp_path: Path,
) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(
        script: dict[str, list[list[dict[str, Any]]]], *, keep_going: bool = False
    ) -> Running:
        started.append(Running(script, tmp_path, keep_going=keep_going))
        return started[-1]

    yield start
    for each in started:
        each.ended()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_aggregates_start_when_capture_follows_and_all_end_with_it(run: Any) -> None:
    running = run({"capture": [[FOLLOWING]], "aggregates": [[FOLLOWING]]})
    eventually(
        lambda: running.supervisor.states() == {"capture": "running", "aggregates": "running"},
        "both run",
    )
    assert running.heard == [("capture", "following"), ("aggregates", "following")]
    assert running.ended() is None
    assert not any(map(is_alive, running.lives("capture") + running.lives("aggregates")))


def test_a_capture_that_never_follows_keeps_the_rest_waiting(run: Any) -> None:
    running = run({"capture": [[{"event": "reconnecting"}]], "aggregates": [[FOLLOWING]]})
    eventually(lambda: running.heard, "it is heard")
    assert running.supervisor.states() == {"capture": "troubled", "aggregates": "waiting"}
    assert running.lives("aggregates") == []


@pytest.mark.parametrize("death", [{"kill": signal.SIGKILL}, {"end": 1}, {"end": 2}, {"end": 0}])
def test_what_dies_is_started_again(run: Any, death: dict[str, int]) -> None:
    running = run({"capture": [[FOLLOWING, death], [FOLLOWING]], "aggregates": [[FOLLOWING]]})
    eventually(lambda: len(running.lives("capture")) == 2, "it lives again")
    eventually(lambda: running.supervisor.states()["capture"] == "running", "it runs")
    assert len(running.lives("aggregates")) == 1, "the other one was left alone"


def test_capture_that_cannot_start_ends_everything_with_its_own_words(run: Any) -> None:  # M7.3
    running = run({"capture": [[FAILED, {"end": 2}]], "aggregates": [[FOLLOWING]]})
    error = running.ended(by_itself=True)
    assert isinstance(error, PenstockError)
    assert (error.problem, error.remedy) == ("no slot", "Run setup")
    assert running.lives("aggregates") == []


@pytest.mark.parametrize("aggregates", [{"drain": 0}, {"drain": 2}])
def test_capture_that_needs_a_person_ends_everything_after_aggregates_are_drained(
    run: Any, aggregates: dict[str, int]
) -> None:  # M7.3
    script = {
        "capture": [[FOLLOWING, FAILED, {"end": 2}]],
        "aggregates": [[FOLLOWING, aggregates]],
    }
    # Aggregates follow before capture fails.
    script["capture"][0].insert(1, {"wait_for": "aggregates.0"})
    running = run(script)
    error = running.ended(by_itself=True)
    assert isinstance(error, PenstockError)
    assert (error.problem, error.remedy) == ("no slot", "Run setup")
    assert ("aggregates", "drained") in running.heard
    assert len(running.lives("capture")) == len(running.lives("aggregates")) == 1
    assert not any(map(is_alive, running.lives("capture") + running.lives("aggregates")))


def test_without_aggregates_a_capture_that_needs_a_person_ends_everything_at_once(
    run: Any,
) -> None:  # M7.3
    running = run({"capture": [[FOLLOWING, FAILED, {"end": 2}]]})
    error = running.ended(by_itself=True)
    assert isinstance(error, PenstockError)
    assert error.problem == "no slot"


def test_aggregates_that_do_not_run_are_not_waited_for(run: Any) -> None:
    script = {
        "capture": [[FOLLOWING, {"wait_for": "aggregates.0"}, {"sleep": 0.5}, FAILED, {"end": 2}]],
        "aggregates": [[FAILED, {"end": 2}]],
    }
    assert isinstance(run(script).ended(by_itself=True), PenstockError)


def test_what_may_pass_by_itself_is_started_again(run: Any) -> None:  # M7.3
    running = run(
        {"capture": [[FOLLOWING, {**FAILED, "transient": True}, {"end": 2}], [FOLLOWING]]}
    )
    eventually(lambda: len(running.lives("capture")) == 2, "it lives again")
    eventually(lambda: running.supervisor.states()["capture"] == "running", "it runs")
    assert running.ended() is None


def test_one_that_keeps_going_starts_capture_again_after_every_error(run: Any) -> None:
    script = {"capture": [[FOLLOWING, FAILED, {"end": 2}], [FOLLOWING]]}
    running = run(script, keep_going=True)
    eventually(lambda: len(running.lives("capture")) == 2, "it lives again")
    eventually(lambda: running.supervisor.states()["capture"] == "running", "it runs")
    assert running.ended() is None


def test_a_part_that_stays_down_is_logged_again_with_its_age(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.3
    monkeypatch.setattr(lasting_state, "_AGES_S", (1.0, 2.0))
    with capture_logs() as logs:
        running = run({"capture": [[FOLLOWING]], "aggregates": [[FAILED, {"end": 2}]]})

        def lines() -> list[dict[str, Any]]:
            return [dict(line) for line in logs if line["event"] == "not running"]

        eventually(lambda: len(lines()) >= 2, "it is logged again")
        running.ended()
    assert {line["part"] for line in lines()} == {"aggregates"}
    assert (lines()[0]["down_for"], lines()[1]["down_for"]) == ("1 s", "2 s")
    assert (lines()[1]["problem"], lines()[1]["remedy"]) == ("no slot", "Run setup")


def test_aggregates_that_cannot_start_do_not_end_capture(
    run: Any,
) -> None:  # M7.1: the slot waits for nobody downstream
    running = run({"capture": [[FOLLOWING]], "aggregates": [[FAILED, {"end": 2}], [FOLLOWING]]})
    eventually(lambda: len(running.lives("aggregates")) == 2, "tried again")
    eventually(lambda: running.supervisor.states()["aggregates"] == "running", "mended")
    assert len(running.lives("capture")) == 1
    assert is_alive(running.lives("capture")[0])


def test_what_does_not_end_is_killed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "_STOP_S", 0.5)
    running = run({"capture": [[{"ignore": signal.SIGTERM}, FOLLOWING]]})
    eventually(lambda: running.heard, "it runs")
    running.ended()
    assert not is_alive(running.lives("capture")[0])


def test_lines_that_are_no_events_are_told_as_they_are(run: Any) -> None:
    odd = ["Traceback (most recent call last):", '{"no": "event"}', "[1, 2]", "\\x1b[1m{"]
    running = run({"capture": [[{"raw": each} for each in odd] + [FOLLOWING]]})
    eventually(lambda: ("capture", "following") in running.heard, "it follows")
    assert [event for _, event in running.heard] == [*odd, "following"]


def test_a_second_one_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(supervising, "_LOCK_S", 0.5)
    first = run({"capture": [[FOLLOWING]]})
    eventually(lambda: first.heard, "it runs")
    second = run({"capture": [[FOLLOWING]]})
    error = second.ended(by_itself=True)
    assert isinstance(error, LogInUse)
    assert str(tmp_path / "log") in error.problem
    assert len(first.lives("capture")) == 1
