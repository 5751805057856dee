"""An aggregate that is no longer declared: who tells what it holds back, and docs/aggregates.md, of
which the steps are executed as they stand.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from penstock.changelog.consumers import consumers
from penstock.changelog.storage import LocalStorage
from penstock.cli import app
from penstock.config import Config, load
from penstock.ops.doctor import diagnose
from penstock.ops.findings import Finding
from penstock.ops.setup import setup
from penstock.pipelines.job import Job
from penstock.pipelines.seeding import seed
from support.aggregates import NOTES, declared
from support.database import Database
from support.logs import begin_log
from support.toml import write_toml
from support.truth import no_spark

DOCUMENT = Path(__file__).parents[3] / "docs" / "aggregates.md"
OLD = declared(name="old_counts")
MORE = declared(name="more", dimensions=["status"], targets=["more"])
FORGET = "penstock log consumers --forget aggregate-old_counts"


def documented(language: str) -> list[str]:
    """The statements or commands of the section, of the aggregate `old_counts`."""
    section = DOCUMENT.read_text().split("## Removing an aggregate\n")[1].split("\n## ")[0]
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    named = block.replace("NAME", "old_counts")
    own = named.replace("public.ft_notifications, public.ft_service_stats", "stats")
    assert own != named or language == "sh"
    return [line.rstrip(";") for line in own.splitlines()]


def written(database: Database, path: Path, *aggregates: dict[str, Any], **log: Any) -> Config:
    source = {"dsn": database.dsn(), "tables": ["notes"]}
    log = {"path": path / "log", **log}
    return load(
        write_toml(
            path / "penstock.toml", {"source": source, "log": log, "aggregate": [*aggregates]}
        )
    )


@pytest.fixture
def removed(database18: Database, tmp_path: Path) -> Config:
    """Both have begun, and one is no longer in the file."""
    database18.run(
        NOTES, "INSERT INTO notes (service_id, status) VALUES (gen_random_uuid(), 'sent')"
    )
    both = written(database18, tmp_path, OLD, MORE)
    setup(both)
    begin_log(database18, tmp_path / "log", database18.wal_position())
    for each in both.aggregate:
        seed(both, each, no_spark)
    assert told(both) == []
    return written(database18, tmp_path, MORE)


def told(config: Config) -> list[Finding]:
    return [each for each in diagnose(config) if each.check == "log_consumer"]


def held(path: Path) -> list[str]:
    return sorted(each.name for each in consumers(LocalStorage(path / "log")))


def test_doctor_and_the_job_tell_which_consumer_has_no_aggregate_any_more(
    database18: Database, removed: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # M3.9, M7.3
    (finding,) = told(removed)
    assert (finding.level, finding.subject) == ("warning", "aggregate-old_counts")
    (consumer,) = [each for each in consumers(LocalStorage(tmp_path / "log")) if "old" in each.name]
    assert f"keeps everything after {consumer.applied_lsn} for consumer" in finding.what
    assert "bytes behind, and no such aggregate is declared" in finding.what
    assert finding.fix == f"If no other file has it either, run `{FORGET}`"
    assert finding.why == "The log grows without end."
    at_budget = written(database18, tmp_path, MORE, max_gib=1)
    assert "the server's WAL grows instead" in told(at_budget)[0].why

    monkeypatch.setattr(Job, "_prepare", Mock(side_effect=KeyboardInterrupt))
    with capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        Job(removed, Mock()).run()
    (warning,) = logs
    assert warning == {
        "log_level": "warning",
        "event": "log held back",
        "aggregate": "old_counts",
        "problem": finding.what,
        "remedy": finding.fix,
    }


def test_the_documented_steps_release_the_log_the_name_and_the_targets(
    database18: Database, removed: Config, tmp_path: Path
) -> None:
    assert held(tmp_path) == ["aggregate-more", "aggregate-old_counts"]
    database18.run(
        "INSERT INTO penstock.staged VALUES ('old_counts', gen_random_uuid(), '{}', '{}')"
    )
    (line,) = documented("sh")
    assert line == FORGET
    words = [*shlex.split(line)[1:], "--config", str(tmp_path / "penstock.toml")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert held(tmp_path) == ["aggregate-more"]
    assert told(removed) == []
    database18.run(*documented("sql"))
    for table in ("progress", "targets"):
        assert database18.rows(f"SELECT aggregate FROM penstock.{table}") == [("more",)]
    assert database18.rows("SELECT FROM penstock.staged") == []
    # Another one may have the table now.
    anew = written(database18, tmp_path, declared(name="new_counts"), MORE)
    setup(anew)
    assert seed(anew, anew.aggregate[0], no_spark).rows == 1
