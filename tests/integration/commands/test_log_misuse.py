"""`penstock log` on logs that are damaged, cannot be read or are misread: a sentence, a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.changelog import consumers
from penstock.changelog.settings import LogSettings
from penstock.changelog.storage import LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.cli import app
from penstock.errors import LogFormatUnknown, PenstockError
from penstock.lsn import Lsn
from penstock.postgres.messages import Column, Insert, Relation
from support.logs import IDENTITY, append_transaction

NOTES = Relation(1, "Odd schema", "notes", "d", (Column(True, "Body text", 25, -1),))
FIRST, LAST = 0x2000, 0x2070


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Eight transactions, each in a segment of its own."""
    writer = LogWriter(tmp_path / "log", IDENTITY, LogSettings(segment_bytes=1))
    for number in range(8):
        row = Insert(1, (f"row {number}".encode(),))
        append_transaction(writer, FIRST + 16 * number, NOTES, row)
    writer.close()
    return tmp_path / "log"


def penstock(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def error(*words: str) -> PenstockError:
    result = penstock(*words)
    assert isinstance(result.exception, PenstockError), result.output
    return result.exception


def unreadable(path: Path) -> None:
    """As root sees everything, a directory stands for a file that may not be read."""
    path.unlink()
    path.mkdir()


def segment(log: Path, number: int) -> Path:
    return log / "segments" / f"{number:010d}.seg"


@pytest.mark.parametrize("number", [1, 4, 8])
def test_a_segment_of_a_newer_format_is_named_and_not_taken_for_damage(
    log: Path, number: int
) -> None:
    # M7.4
    with segment(log, number).open("r+b") as file:
        file.seek(8)
        file.write(b"\x02")
    for command in ("check", "dump"):
        refused = error("log", command, "--path", str(log))
        assert isinstance(refused, LogFormatUnknown)
        assert f"{segment(log, number)} has format 2" in refused.problem
        assert "reads up to 1" in refused.problem
        assert "Upgrade Penstock" in refused.remedy


def test_a_newer_format_is_not_written_to(log: Path) -> None:
    # M7.4
    last = segment(log, 9)
    before = last.read_bytes()
    newer = before[:8] + b"\x02" + before[9:]
    last.write_bytes(newer)
    with pytest.raises(LogFormatUnknown, match="has format 2"):
        LogWriter(log)
    assert last.read_bytes() == newer


@pytest.mark.parametrize(
    "damage",
    [
        lambda log: unreadable(log / "log.json"),
        lambda log: unreadable(log / "head"),
        lambda log: unreadable(segment(log, 3)),
        lambda log: (log / "consumers").write_text("x"),
    ],
    ids=["identity", "head", "segment", "consumers"],
)
@pytest.mark.parametrize("command", ["info", "dump", "check", "consumers"])
def test_what_cannot_be_read_is_named(
    log: Path, damage: Callable[[Path], None], command: str
) -> None:  # M7.3
    damage(log)
    result = penstock("log", command, "--path", str(log))
    assert result.exit_code == 0 or "cannot be read" in str(result.exception)
    assert result.exception is None or isinstance(result.exception, PenstockError)


@pytest.mark.parametrize("number", [1, 4, 9])
@pytest.mark.parametrize("command", ["check", "dump"])
def test_a_segment_that_is_missing_is_damage_and_not_retention(
    log: Path, number: int, command: str
) -> None:  # M3.4
    segment(log, number).unlink()
    found = error("log", command, "--path", str(log))
    assert f"{number:010d}.seg is damaged at byte 0: it is missing" in found.problem


def test_a_segment_that_is_cut_between_frames_is_damage(log: Path) -> None:  # M3.4
    with segment(log, 4).open("r+b") as file:
        file.truncate(64)
    found = error("log", "dump", "--path", str(log))
    assert "0000000004.seg is damaged at byte 64: it was cut off" in found.problem


def test_forgetting_removes_nothing_but_a_registered_consumer(log: Path) -> None:
    storage = LocalStorage(log)
    consumers.register(storage, "mine", str(IDENTITY.log_id), Lsn(FIRST))
    for name in ("../log", "../../log", "", "nobody", "mine.json"):
        assert (
            "is registered"
            in error("log", "consumers", "--path", str(log), "--forget", name).problem
        )
    assert (log / "log.json").exists()
    assert penstock("log", "consumers", "--path", str(log), "--forget", "mine").exit_code == 0
    assert consumers.consumers(storage) == []
    (log / "consumers" / "bad.json").write_text("{")
    assert penstock("log", "consumers", "--path", str(log), "--forget", "bad").exit_code == 0


def test_a_value_cannot_pass_for_something_else(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log", IDENTITY)
    evil = 'a\ncommit 0/1  "\x1b[31m\x9b red'
    append_transaction(writer, FIRST, NOTES, Insert(1, (evil.encode(),)))
    writer.close()
    printed = penstock("log", "dump", "--path", str(tmp_path / "log")).stdout
    (line,) = (line for line in printed.splitlines() if "insert" in line)
    shown = r'"a\ncommit 0/1  \"\u001b[31m\u009b red"'
    assert line.endswith(f'insert "Odd schema".notes  new "Body text"={shown}')
    assert len(printed.splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--from", "0/2070", "--to", "0/2010"], "--to 0/2010 is before 0/2070"),
        (["--from", "0/0"], "--from 0/0 is not in the log"),
        (["--to", "0/0"], "--to 0/0 is before 0/1000"),
        (["--from", "FFFFFFFF/0"], "--from FFFFFFFF/0 is not in the log"),
        (["--from", ""], "--from: "),
        (["--to", "x"], "--to: "),
    ],
)
def test_positions_that_make_no_sense_are_told_the_extent_of_the_log(
    log: Path, options: list[str], problem: str
) -> None:
    found = error("log", "dump", "--path", str(log), *options)
    assert problem in found.problem
    assert "Write it as" in found.remedy or f"from 0/1000 to {Lsn(LAST)}" in found.remedy


def test_an_error_of_a_dump_in_json_is_one_line(log: Path) -> None:
    result = penstock("log", "dump", "--path", str(log), "--from", "bad", "--json")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["error"]["kind"] == "ConfigInvalidValue"


def test_without_a_configuration_file_that_is_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no penstock.toml in this folder" in error("log", "info").problem


def test_an_empty_configuration_file_is_not_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M7.3
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text("\n")
    found = error("log", "info")
    assert found.problem == "configuration file penstock.toml is there but holds no setting"
    assert "`penstock init`" in found.remedy


def test_a_log_of_another_identity_than_its_segments_is_named_by_check(log: Path) -> None:
    fields = json.loads((log / "log.json").read_text())
    other = str(replace(IDENTITY).log_id.int + 1)
    fields["id"] = f"{int(other):032x}"
    (log / "log.json").write_text(json.dumps(fields))
    assert "belongs to another log" in error("log", "check", "--path", str(log)).problem
