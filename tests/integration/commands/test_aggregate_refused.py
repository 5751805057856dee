"""`penstock aggregate`, `reset` and `verify`, where they cannot run: exit code 2, what is wrong and
what to do. M7.3
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import PenstockError
from support.aggregates import declared
from support.toml import write_toml

# Nobody is asked who is there.
NOWHERE = "host=127.0.0.1 port=1"


def refused(directory: Path, *words: str, aggregates: list[dict[str, Any]] | None = None) -> str:
    settings: dict[str, Any] = {
        "source": {"dsn": NOWHERE, "tables": ["notes"]},
        "log": {"path": directory / "log"},
    }
    if aggregates:
        settings["aggregate"] = aggregates
    file = write_toml(directory / "penstock.toml", settings)
    error = CliRunner().invoke(app, [*words, "--config", str(file)]).exception
    # As `main` prints it, and ends with 2.
    assert isinstance(error, PenstockError), error
    return str(error)


COMMANDS = [("aggregate",), ("reset", "counts"), ("verify",)]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_without_an_aggregate_there_is_nothing_to_do(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    said = refused(tmp_path, *words)
    assert said == "no aggregate is declared. Add an [[aggregate]] to the configuration"


@pytest.mark.parametrize("words", COMMANDS[1:], ids=lambda words: words[0])
def test_a_log_that_is_not_there_is_named_before_spark_starts(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    said = refused(tmp_path, *words, aggregates=[declared()])
    assert said.startswith(f"there is no change log in {tmp_path / 'log'}. Check the path")


@pytest.mark.parametrize("command", ["reset", "verify"])
def test_an_aggregate_that_is_not_declared_is_named(command: str, tmp_path: Path) -> None:
    said = refused(tmp_path, command, "count", aggregates=[declared()])
    assert said == "there is no aggregate count. Those declared are: counts"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dimensions": {"d": "upper(status"}}, "is not an expression of Spark SQL"),
        ({"dimensions": {"d": "status; status"}}, "should be one expression"),
        ({"dimensions": {"d": "(select 1)"}}, "is about several rows"),
        ({"dimensions": {"d": "concat(status, cast(rand() as string))"}}, "uses rand"),
        ({"targets": ["t" * 64]}, "at most 63 bytes"),
        ({"dimension": ["status"]}, "Did you mean dimensions?"),
        ({"measures": {"mean": "avg(price)"}}, 'should be "count" or "sum(column)"'),
    ],
)
@pytest.mark.parametrize("command", ["setup", "doctor", "aggregate", "verify"])
def test_every_command_names_what_is_declared_wrong(
    command: str, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:  # M5.2
    found = refused(tmp_path, command, aggregates=[declared(**changes)])
    assert f"{tmp_path / 'penstock.toml'}: " in found
    assert "in [[aggregate]] 1 (counts)" in found
    assert said in found
