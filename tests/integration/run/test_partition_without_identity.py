"""`penstock run` while a partition lacks its replica identity: what is said at each new try."""

from __future__ import annotations

from pathlib import Path

from penstock.ops.setup import setup
from support.aggregates import config_with, declared
from support.database import Database
from support.processes import PenstockProcess, started
from support.waiting import eventually

FIX = ", or: ALTER TABLE public.b REPLICA IDENTITY FULL"


def test_the_error_is_told_once_with_its_remedy_and_then_in_a_line(
    database18: Database, tmp_path: Path
) -> None:  # M4.2, M7.3
    database18.run(
        "CREATE TABLE notes (id int, k int, status text, PRIMARY KEY (id, k))"
        " PARTITION BY LIST (k)",
        "ALTER TABLE notes REPLICA IDENTITY FULL",
    )
    config = config_with(database18, declared(dimensions=["k", "status"]))
    log = config.log.model_copy(update={"path": tmp_path / "log"})
    config = config.model_copy(update={"log": log})
    setup(config)
    database18.run("CREATE TABLE b PARTITION OF notes FOR VALUES IN (2)")
    run = PenstockProcess("run", config, tmp_path)
    with started(run):
        eventually(lambda: run.all_said().count("exit code 2") == 3, "three tries", within_s=60)
        run.stop(within_s=30)
    said = run.all_said().splitlines()
    # To be copied from the end of its line.
    assert sum(line.endswith(FIX) for line in said) == 1
    (full,) = [line for line in said if "problem: " in line]
    assert full == (
        "  problem: partitions of public.notes have another replica identity than their root, so "
        "aggregate counts would go wrong: UPDATE and DELETE of public.b do not write the old "
        "status to the WAL"
    )
    assert sum("(told above)" in line for line in said) == 2
    assert "Traceback" not in run.all_said()
