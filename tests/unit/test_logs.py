"""What services say on standard error, for people and for the supervisor."""

from __future__ import annotations

import json

import pytest

from penstock.errors import PenstockError
from penstock.logs import configure_logs, log_failure

FAILURE = PenstockError("the target is gone", remedy="Run: penstock setup")


def test_a_person_is_advised_what_to_call(capsys: pytest.CaptureFixture[str]) -> None:  # M7.3
    configure_logs(advise=lambda advice: f"{advice} --config other.toml")
    log_failure(FAILURE)
    said = capsys.readouterr().err
    assert "the target is gone" in said
    assert "Run: penstock setup --config other.toml" in said


def test_the_supervisor_gets_it_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=True)
    log_failure(FAILURE)
    assert json.loads(capsys.readouterr().err) == {
        "event": "failed",
        "level": "error",
        "problem": FAILURE.problem,
        "remedy": FAILURE.remedy,
    }


def test_an_error_of_several_lines_stands_below_and_comes_again_as_one(
    capsys: pytest.CaptureFixture[str],
) -> None:  # M7.3
    configure_logs()
    failure = PenstockError("a\x1b[2J differs", remedy="Run:\n  ALTER TABLE a;\n  ALTER TABLE b;")
    log_failure(failure)
    first, *below = capsys.readouterr().err.splitlines()
    assert first.rstrip().endswith("failed")
    assert below == [
        "  problem: a\\u001b[2J differs",
        "  remedy: Run:",
        "    ALTER TABLE a;",
        "    ALTER TABLE b;",
    ]
    log_failure(failure)
    (again,) = capsys.readouterr().err.splitlines()
    assert "differs (told above)" in again
    # For programs, all of it each time.
    configure_logs(as_json=True)
    for _ in range(2):
        log_failure(failure)
        assert json.loads(capsys.readouterr().err)["remedy"] == failure.remedy
