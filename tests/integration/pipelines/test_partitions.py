"""Partitions whose replica identity is not their root's, as real servers send them. M4.2, M4.6"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from penstock.changelog.reader import LogReader
from penstock.config import Config
from penstock.decode.stops import Stop, StopCode
from penstock.errors import InputUnfit, PartitionDiffers
from penstock.ops.setup import setup
from penstock.pipelines import job
from penstock.pipelines.binding import bind, types_of
from penstock.pipelines.job import Job, require_ready
from penstock.pipelines.log_deltas import log_deltas
from penstock.pipelines.sources import read_sources
from support.aggregates import bad, config_with, declared, findings
from support.database import Database
from support.jobs import captured
from support.printed import statements_of
from support.proxy import Proxy
from support.waiting import eventually

PARTED = (
    (
        "CREATE TABLE notes (id int, k int, status text NOT NULL, PRIMARY KEY (id, k))"
        " PARTITION BY LIST (k)"
    ),
    "CREATE TABLE a PARTITION OF notes FOR VALUES IN (1)",
    "CREATE UNIQUE INDEX by_status ON notes (id, k, status)",
    "ALTER TABLE notes REPLICA IDENTITY USING INDEX by_status",
    "ALTER TABLE a REPLICA IDENTITY USING INDEX a_id_k_status_idx",
)
NEW_PARTITION = "CREATE TABLE b PARTITION OF notes FOR VALUES IN (2)"
MENDED = "ALTER TABLE b REPLICA IDENTITY USING INDEX b_id_k_status_idx"
COUNTS = declared(dimensions=["status"])


@pytest.fixture
def parted(database: Database) -> Database:
    database.run(*PARTED)
    return database


def ready(database: Database, log: Path, **source: Any) -> Config:
    """Set up."""
    given = {"keepalive_interval_s": 0.1, **source}
    config = config_with(database, COUNTS, **given)
    log_config = config.log.model_copy(update={"path": log})
    heartbeat = config.heartbeat.model_copy(update={"interval_min": 0})
    config = config.model_copy(update={"log": log_config, "heartbeat": heartbeat})
    setup(config)
    return config


def added(database: Database, config: Config) -> tuple[dict[str | None, int], dict[str, int]]:
    """What the log adds to the counts, and what does not count, by reason."""
    log = LogReader(config.log.path)
    now = database.wal_position()
    eventually(lambda: log.end().lsn >= now, "all is in the log")
    bound = bind(config.aggregate[0], types_of(read_sources(config).tables), now)
    batch = log_deltas(log, bound, log.identity.start_lsn, log.end().lsn, Mock())
    rows = batch.sums.to_pylist()
    return {row["status"]: row["count"] for row in rows}, dict(batch.skipped)


def test_what_a_new_partition_leaves_out_of_its_keys_is_never_taken_for_null(
    parted: Database, tmp_path: Path
) -> None:  # M4.2, M4.6
    config = ready(parted, tmp_path / "log")
    with captured(config):
        parted.run(
            NEW_PARTITION,
            "INSERT INTO notes VALUES (1, 2, 'new'), (2, 2, 'new'), (3, 1, 'new')",
            "UPDATE notes SET id = 7, status = 'sent' WHERE id = 1",
            "DELETE FROM notes WHERE id = 2",
            "DELETE FROM notes WHERE id = 3",
            MENDED,
        )
        counts, skipped = added(parted, config)
    assert counts == {"new": 2}
    assert skipped == {
        "update of public.notes: the old status is not in the WAL": 1,
        "delete of public.notes: the old status is not in the WAL": 1,
    }


def test_a_whole_row_of_a_partition_is_read_as_far_as_its_root_says(
    parted: Database, tmp_path: Path
) -> None:  # M4.2
    config = ready(parted, tmp_path / "log")
    with captured(config):
        # Which the server sends as keys.
        parted.run(
            "ALTER TABLE a REPLICA IDENTITY FULL",
            "INSERT INTO notes VALUES (1, 1, 'new'), (2, 1, 'new')",
            "UPDATE notes SET status = 'sent' WHERE id = 1",
            "DELETE FROM notes WHERE id = 2",
        )
        assert added(parted, config) == ({"sent": 1}, {})
        # Under DEFAULT its old status is sent, and not read. (The server describes the root anew
        # only when the leaf has changed.)
        parted.run(
            "ALTER TABLE notes REPLICA IDENTITY DEFAULT",
            "ALTER TABLE a REPLICA IDENTITY DEFAULT",
            "ALTER TABLE a REPLICA IDENTITY FULL",
            "DELETE FROM notes",
        )
        reason = "delete of public.notes: the old status is not in the WAL"
        assert added(parted, config) == ({"sent": 1}, {reason: 1})


def test_aggregates_are_refused_while_a_partition_holds_less_than_its_root(
    parted: Database, tmp_path: Path
) -> None:  # M4.2
    config = ready(parted, tmp_path / "log")
    with captured(config):
        require_ready(config)
        for mend in (lambda: parted.run(MENDED), lambda: setup(config)):
            parted.run("DROP TABLE IF EXISTS b", NEW_PARTITION)
            with pytest.raises(PartitionDiffers, match=r"DELETE of public\.b") as caught:
                require_ready(config)
            assert MENDED.replace(" b ", " public.b ") in caught.value.remedy
            mend()
            require_ready(config)
        # A whole row of which the others are NULL is not told from one where they are.
        parted.run("ALTER TABLE notes REPLICA IDENTITY FULL")
        with pytest.raises(PartitionDiffers, match=r"public\.a.*public\.b") as caught:
            require_ready(config)
        assert "ALTER TABLE public.a REPLICA IDENTITY FULL" in caught.value.remedy


@pytest.fixture
def proxy(database18: Database) -> Iterator[Proxy]:
    with Proxy(database18.server.port) as proxy:
        yield proxy


@pytest.fixture
def watching(
    database18: Database, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Job]:
    """A job that looks at its sources and does nothing else."""
    monkeypatch.setattr(job, "_SOURCES_EVERY_S", 0.05)
    database18.run(*PARTED)
    config = ready(database18, tmp_path / "log", dsn=proxy.through(database18.dsn()))
    with captured(config):
        pass
    watcher = Job(config, Mock())
    watcher._writers = [Mock(stop=None, away=None, noted=Mock(return_value=None))]
    watcher._writers[0].name = "counts"
    with watcher._beside(watcher._watch_sources, "watching"):
        yield watcher


def watched(watcher: Job) -> None:
    """It has found nothing."""
    assert watcher._failure is None
    assert not stopped(watcher).called


def stopped(watcher: Job) -> Any:
    (writer,) = watcher._writers
    return writer.stop_for


def test_a_partition_that_comes_later_is_noticed_and_a_source_that_is_away_is_no_failure(
    database18: Database, proxy: Proxy, watching: Job, monkeypatch: pytest.MonkeyPatch
) -> None:  # M4.2
    looked: list[Config] = []

    def noted(config: Config) -> Any:
        try:
            return read_sources(config)
        finally:
            looked.append(config)

    monkeypatch.setattr(job, "read_sources", noted)
    proxy.refuse()
    eventually(lambda: len(looked) > 2, "it looks, and finds nobody")
    watched(watching)
    # One that has its identity when it can be seen is none to talk about.
    with database18.connect(autocommit=False) as migration:
        migration.execute(NEW_PARTITION.encode())
        migration.execute(MENDED.encode())
    proxy.refuse(False)
    seen = len(looked)
    eventually(lambda: len(looked) > seen + 2, "it looks again")
    watched(watching)
    database18.run("CREATE TABLE c PARTITION OF notes FOR VALUES IN (3)")
    eventually(lambda: stopped(watching).called, "it is noticed")
    stop = Stop(StopCode.PARTITION_DIFFERS, "public.notes")
    assert stopped(watching).call_args == call(stop)
    assert "public.c" in str(watching._writers[0].fail.call_args)  # type: ignore[attr-defined]


def test_set_up_and_the_job_refuse_a_table_whose_changes_come_under_other_names(
    parted: Database, tmp_path: Path
) -> None:  # M4.6
    parted.run("CREATE PUBLICATION own FOR TABLE notes")
    by_leaf = "sends under the names of its partitions"
    with pytest.raises(InputUnfit, match=by_leaf) as caught:
        ready(parted, tmp_path / "log", publication="own")
    parted.run(*statements_of(caught.value.remedy))
    config = ready(parted, tmp_path / "log", publication="own")
    with captured(config):
        require_ready(config)
        parted.run("ALTER PUBLICATION own SET (publish_via_partition_root = false)")
        with pytest.raises(InputUnfit, match=by_leaf) as caught:
            require_ready(config)
        assert caught.value.remedy.endswith("Then, if it has begun: penstock reset counts")
    # A leaf by itself, where its root is published.
    parted.run("ALTER PUBLICATION own SET (publish_via_partition_root = true)")
    of_leaf = config_with(
        parted, {**COUNTS, "sources": ["a"]}, tables=["a"], publication="own", slot="other"
    )
    with pytest.raises(InputUnfit, match=r"sends under the name of public\.notes") as caught:
        setup(of_leaf)
    assert 'Name "public.notes" in sources' in caught.value.remedy
    leaf = of_leaf.model_copy(update={"log": config.log})
    with pytest.raises(InputUnfit, match=r"sends under the name of public\.notes"):
        require_ready(leaf)
    # One of ours learns to publish roots.
    parted.run("CREATE PUBLICATION ours FOR TABLE notes")
    parted.run("COMMENT ON PUBLICATION ours IS 'Made by Penstock'")
    setup(config_with(parted, COUNTS, publication="ours", slot="third"))
    assert parted.value("SELECT pubviaroot FROM pg_publication WHERE pubname = 'ours'")


NEVER_SENT = {
    "unlogged": ["CREATE UNLOGGED TABLE u PARTITION OF notes FOR VALUES IN (2)"],
    "made unlogged": [
        "CREATE TABLE u PARTITION OF notes FOR VALUES IN (2)",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "ALTER TABLE u SET UNLOGGED",
    ],
    "foreign": [
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER far FOREIGN DATA WRAPPER elsewhere",
        "CREATE FOREIGN TABLE u PARTITION OF notes FOR VALUES IN (2) SERVER far",
    ],
}


@pytest.mark.parametrize("made", NEVER_SENT.values(), ids=NEVER_SENT)
def test_partitions_whose_changes_never_reach_the_wal_are_refused_everywhere(
    database: Database, tmp_path: Path, made: list[str]
) -> None:  # M4.6, M5.8
    database.run(
        "CREATE TABLE notes (id int, k int, status text) PARTITION BY LIST (k)",
        "CREATE TABLE a PARTITION OF notes FOR VALUES IN (1)",
    )
    full = {"name": "notes", "replica_identity": "full"}
    config = ready(database, tmp_path / "log", tables=[full])
    with captured(config):
        require_ready(config)
        database.run(*made)
        with pytest.raises(InputUnfit, match=r"changes of public\.u \((unlogged|foreign) table\)"):
            require_ready(config)
        assert read_sources(config).unfit["counts"].stop == Stop(StopCode.NOT_SENT, "public.notes")
        wrong = bad(findings(database, COUNTS, tables=[full]))
        assert [one.check for one in wrong] == ["aggregate_inputs"]
        with pytest.raises(InputUnfit, match="are never in the WAL") as caught:
            setup(config)
        remedy = caught.value.remedy
        is_foreign = remedy.startswith("Detach public.u from public.notes")
        detached = "ALTER TABLE notes DETACH PARTITION u"
        database.run(detached if is_foreign else remedy.removeprefix("Run: "))
        setup(config)
        require_ready(config)
