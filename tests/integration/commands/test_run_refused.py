"""`penstock run` where it cannot: exit code 2, one sentence and what to do. M7.3"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.aggregates import declared
from support.database import Database
from support.toml import write_toml
from support.workload import prepare

PENSTOCK = Path(sys.executable).parent / "penstock"


def refused(directory: Path, settings: dict[str, Any], **environ: str) -> str:
    file = write_toml(directory / "penstock.toml", settings)
    done = subprocess.run(
        [PENSTOCK, "run", "--config", file],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def settings_for(dsn: str, log: Path, *aggregates: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": {"dsn": dsn, "tables": ["items", "notes"], "slot": "nobody_made_it"},
        "log": {"path": log},
        "aggregate": list(aggregates),
    }


def test_without_java_or_with_an_old_one_nothing_is_started(tmp_path: Path) -> None:
    settings = settings_for("host=127.0.0.1 port=1", tmp_path / "log", declared())
    said = refused(tmp_path, settings, PATH=str(tmp_path), JAVA_HOME="")
    assert "Java is not installed" in said
    assert "openjdk-17-jre-headless" in said
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    said = refused(tmp_path, settings, PATH=f"{tmp_path}:/usr/bin:/bin", JAVA_HOME="")
    assert "is Java 11, and Spark 4 needs 17" in said
    assert not (tmp_path / "log").exists()


def test_a_slot_that_is_missing_ends_it_at_once(database18: Database, tmp_path: Path) -> None:
    prepare(database18)
    said = refused(tmp_path, settings_for(database18.dsn(), tmp_path / "log"))
    assert "error: " in said
    assert "nobody_made_it" in said
    assert "penstock setup" in said


def test_a_log_that_cannot_be_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused(tmp_path, settings_for("host=127.0.0.1 port=1", tmp_path / "file" / "log"))
    assert str(tmp_path / "file") in said
    assert "Correct `path` in [log]" in said
