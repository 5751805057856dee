"""The log's directory is not what it should be: named, and left as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.capture import engine
from penstock.changelog.writer import LogWriter
from penstock.errors import (
    LogCorrupt,
    LogError,
    LogForeign,
    LogFormatUnknown,
    LogInUse,
    LogUnwritable,
    OlderTimeline,
    SlotInUse,
    WrongServer,
    WrongSlot,
)
from support.capturing import capture_config, capturing
from support.database import Database
from support.disk import small_disk
from support.impatient import Impatient
from support.logs import identity
from support.oracle import Mirror
from support.processes import capture_process
from support.refusals import (
    log_of_another_database,
    not_json,
    refusal,
    somebodys_files,
    somebodys_log_json,
    write_a_log,
)
from support.waiting import eventually
from support.workload import SLOT, insert_items, prepare


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but the lock, which is the first thing that a writer makes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("writer.lock", "epoch")
    }


@pytest.mark.parametrize("foreign", [somebodys_files, somebodys_log_json, not_json])
def test_a_directory_of_somebody_else_is_refused(
    database18: Database, tmp_path: Path, foreign: Callable[[Path], None]
) -> None:
    # M7.3
    prepare(database18)
    foreign(tmp_path / "log")
    before = contents(tmp_path / "log")
    error = refusal(database18, tmp_path / "log")
    assert isinstance(error, LogForeign)
    assert str(tmp_path / "log") in str(error)
    assert "directory in [log]" in str(error)
    assert contents(tmp_path / "log") == before


def test_a_log_that_has_lost_its_identity_is_not_given_a_new_one(
    database18: Database, tmp_path: Path
) -> None:
    # M3.9: positions would mean something else, and nobody would notice.
    prepare(database18)
    write_a_log(database18, tmp_path)
    (tmp_path / "log.json").unlink()
    before = contents(tmp_path)
    assert isinstance(refusal(database18, tmp_path), LogForeign)
    assert contents(tmp_path) == before


def test_a_log_with_the_identity_of_another_is_refused(
    database18: Database, tmp_path: Path
) -> None:
    # M3.9
    prepare(database18)
    write_a_log(database18, tmp_path)
    fields = json.loads((tmp_path / "log.json").read_bytes())
    fields["id"] = "00000000-0000-4000-8000-000000000000"
    (tmp_path / "log.json").write_text(json.dumps(fields))
    error = refusal(database18, tmp_path)
    assert isinstance(error, LogCorrupt)
    assert "belongs to another log" in str(error)


def test_a_newer_format_is_refused_with_both_versions(database18: Database, tmp_path: Path) -> None:
    # M7.3, M7.4
    prepare(database18)
    write_a_log(database18, tmp_path)
    fields = json.loads((tmp_path / "log.json").read_bytes())
    (tmp_path / "log.json").write_text(json.dumps({**fields, "format": 99}))
    before = contents(tmp_path)
    error = refusal(database18, tmp_path)
    assert isinstance(error, LogFormatUnknown)
    assert "format 99" in str(error)
    assert "up to 1" in str(error)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("where", ["file", "in a file", "read-only"])
def test_a_place_where_nothing_can_be_written_is_refused_at_once(
    database18: Database, tmp_path: Path, where: str
) -> None:
    # M7.3: waiting would not help, as it does with a full disk.
    prepare(database18)
    with small_disk(tmp_path / "disk", mib=1) as disk:
        log = disk.path / "log"
        if where == "read-only":
            disk.make_read_only()
        else:
            log.write_text("a file")
            log = log if where == "file" else log / "deeper"
        error = refusal(database18, log)
    assert isinstance(error, LogUnwritable)
    assert str(log) in str(error)
    assert "`path` in [log]" in str(error)


def test_a_log_of_another_database_is_refused(database18: Database, tmp_path: Path) -> None:
    # M7.3
    with log_of_another_database(database18, tmp_path) as config, capturing(config) as running:
        error = running.failure()
    assert isinstance(error, WrongServer)
    assert f'"{database18.name}"' in str(error)
    assert '"t_its_neighbour"' in str(error)


def test_a_log_of_a_timeline_that_the_server_never_was_on_is_refused(
    database18: Database, tmp_path: Path
) -> None:
    # M7.3: it belongs to a server that was promoted elsewhere.
    prepare(database18)
    system_id = database18.value("SELECT system_identifier::text FROM pg_control_system()")
    ours = identity(database18, database18.confirmed(SLOT), system_id)
    LogWriter(tmp_path, ours).close()
    fields = json.loads((tmp_path / "log.json").read_bytes())
    (tmp_path / "log.json").write_text(json.dumps({**fields, "timeline": 7}))
    error = refusal(database18, tmp_path)
    assert isinstance(error, OlderTimeline)
    assert "the log has followed a failover to 7" in str(error)
    assert not (tmp_path / "refused.json").exists(), "the promoted server may be well"


def test_a_log_of_another_slot_is_refused(database18: Database, tmp_path: Path) -> None:
    # M7.3: the other slot stands elsewhere, and changes in between would be lost.
    prepare(database18)
    system_id = database18.value("SELECT system_identifier::text FROM pg_control_system()")
    ours = identity(database18, database18.confirmed(SLOT), system_id)
    LogWriter(tmp_path, replace(ours, slot="another")).close()
    error = refusal(database18, tmp_path)
    assert isinstance(error, WrongSlot)
    assert 'from slot "another"' in str(error)


def test_a_second_capture_of_the_same_log_is_refused(
    database18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M7.3: by another slot, and in another process. `penstock log prune` holds the log for a
    # moment, so it is tried again, but not for ever.
    monkeypatch.setattr(engine, "Patience", Impatient)
    prepare(database18)
    database18.rows("SELECT pg_copy_logical_replication_slot(%s, 'second')", SLOT)
    mirror = Mirror(tmp_path / "log")
    second = capture_config(database18.dsn(), tmp_path / "log", slot="second")
    with capturing(capture_config(database18.dsn(), tmp_path / "log")) as running:
        mirror.must_equal(database18)
        with capturing(second) as beside:
            error = beside.failure()
        assert isinstance(error, LogInUse)
        assert isinstance(error, LogError)
        with capture_process(second, tmp_path) as process:
            said = "another process writes to the change log"
            eventually(lambda: said in process.said(), "the other process is refused too")
            process.stop()
        with database18.connect() as connection:
            insert_items(connection, 10)
        mirror.must_equal(database18)
        assert running.connections == 1


def test_a_second_capture_of_the_same_slot_gives_up_after_a_while(
    database18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M7.3: what holds the slot may be our own past, so it is tried again, but not for ever.
    monkeypatch.setattr(engine, "Patience", Impatient)
    prepare(database18)
    mirror = Mirror(tmp_path / "log")
    with capturing(capture_config(database18.dsn(), tmp_path / "log")) as running:
        mirror.must_equal(database18)
        with capturing(capture_config(database18.dsn(), tmp_path / "other")) as beside:
            error = beside.failure()
        assert isinstance(error, SlotInUse)
        assert not (tmp_path / "other").exists()
        mirror.must_equal(database18)
        assert running.connections == 1
