"""What an application's writers notice of each way to count: commits a second, and commit latency.

Four clients of `pgbench` insert single rows as fast as they can. The same machine runs the server,
the clients and whatever counts, so that all of them share its cores.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from penstock import config as configuration
from penstock.bench.notifications import create_table
from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.bench.service import flushed
from penstock.changelog.reader import LogReader
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.ops.setup import setup
from penstock.postgres.embedded import EmbeddedPostgres

SECONDS = 15.0
ROUNDS = 3
_CLIENTS = 4
_START_S = 120.0
_TRANSACTION = """
\\set service random(0, 19)
\\set template random(0, 4)
INSERT INTO notifications
VALUES (gen_random_uuid(), md5('service' || :service)::uuid,
        md5('template' || :service || :template)::uuid, NULL, 'email', 'normal', 'created', now(),
        NULL);
"""
_CONFIG = """
[source]
dsn = "{dsn}"
tables = ["notifications"]

[heartbeat]
interval_min = 0

[[aggregate]]
name = "stats"
dimensions = ["service_id", "template_id", "notification_type", "notification_status"]
targets = ["stats"]
verifiable = false

[[aggregate.sources]]
table = "notifications"
immutable = ["service_id", "template_id", "notification_type"]
delete = false
"""
_KEY = "service_id, template_id, notification_type, notification_status"
_COUNTED = f"""
CREATE TABLE counted (service_id uuid, template_id uuid, notification_type text,
                      notification_status text, count bigint NOT NULL, PRIMARY KEY ({_KEY}));
CREATE FUNCTION count_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO counted
  VALUES (NEW.service_id, NEW.template_id, NEW.notification_type, NEW.notification_status, 1)
  ON CONFLICT ({_KEY}) DO UPDATE SET count = counted.count + 1;
  RETURN NULL;
END $$;
CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO counted SELECT {_KEY}, count(*) FROM fresh GROUP BY {_KEY} ORDER BY {_KEY}
  ON CONFLICT ({_KEY}) DO UPDATE SET count = counted.count + excluded.count;
  RETURN NULL;
END $$;
"""  # noqa: S608 - all of it is ours
_TRIGGERS = {
    "row": "FOR EACH ROW EXECUTE FUNCTION count_row()",
    "statement": "REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION count_rows()",
}


@dataclass(frozen=True, slots=True)
class _Place:
    """A server with its table, and a configuration for it."""

    server: EmbeddedPostgres
    connection: psycopg.Connection[Any]
    root: Path

    @property
    def config(self) -> Path:
        return self.root / "penstock.toml"


def bench_writer(progress: Progress, *, seconds: float = SECONDS, rounds: int = ROUNDS) -> Report:
    runs: list[dict[str, Any]] = []
    with (
        EmbeddedPostgres(18) as server,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        place = _Place(server, connection, Path(directory))
        _prepare(place)
        ways = list(_WAYS.items())
        for number in range(rounds):
            # Another one is first each time.
            for name, way in ways[number:] + ways[:number]:
                with way(place):
                    commits, p99_ms = _write(place, seconds)
                progress(f"{name}: {commits:,.0f} commits/s, p99 {p99_ms:.1f} ms")
                runs.append({"with": name, "commits_per_s": commits, "p99_ms": p99_ms})
        version = server.full_version
    figures = []
    for name in _WAYS:
        own = [run for run in runs if run["with"] == name]
        commits = statistics.median(run["commits_per_s"] for run in own)
        p99_ms = statistics.median(run["p99_ms"] for run in own)
        figures += [
            Figure(f"{name}, commits", round(commits), "commits/s"),
            Figure(f"{name}, commit p99", round(p99_ms, 1), "ms"),
        ]
    return Report("writer", figures, runs, {"postgres": version})


def _prepare(place: _Place) -> None:
    create_table(place.connection)
    place.connection.execute(_COUNTED)
    place.connection.execute(
        "ALTER TABLE notifications REPLICA IDENTITY USING INDEX notifications_id_status"
    )
    (place.root / "transaction.sql").write_text(_TRANSACTION)
    place.config.write_text(_CONFIG.format(dsn=place.server.dsn()))
    setup(configuration.load(place.config, environ={}))


def _write(place: _Place, seconds: float) -> tuple[float, float]:
    """Commits a second, and the 99th percentile of how long each took in milliseconds."""
    transaction = str(place.root / "transaction.sql")
    with tempfile.TemporaryDirectory(dir=place.root) as directory:
        done = subprocess.run(
            [
                *place.server.program("pgbench"),
                *("--no-vacuum", "--protocol=prepared", f"--client={_CLIENTS}", "--jobs=2"),
                *(
                    "--file",
                    transaction,
                    f"--time={max(1, round(seconds))}",
                ),
                *("--log", f"--log-prefix={directory}/log", place.server.dsn()),
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise PenstockError(f"pgbench failed: {done.stderr.strip()}", remedy="See its message")
        # Of each line: client, transaction, microseconds, script, and when it ended.
        texts = (file.read_text() for file in Path(directory).iterdir())
        lines = [line.split() for text in texts for line in text.splitlines()]
    ended = [int(line[4]) + int(line[5]) / 1e6 for line in lines]
    took_ms = sorted(int(line[2]) / 1000 for line in lines)
    return len(lines) / (max(ended) - min(ended)), took_ms[len(took_ms) * 99 // 100]


@contextmanager
def _started(place: _Place, command: str) -> Iterator[None]:
    """A command of ours in a process of its own, once it has all that was there before."""
    program = Path(sys.executable).parent / "penstock"
    said = place.root / f"{command}.log"
    with said.open("wb") as output:
        process = subprocess.Popen([program, command, "-c", place.config], stderr=output)
    try:
        now = flushed(place.connection)
        is_there = _is_applied if command == "run" else _is_logged
        deadline = time.monotonic() + _START_S
        while not is_there(place, now):
            if process.poll() is not None or time.monotonic() > deadline:
                raise PenstockError(
                    f"{command} did not follow: {said.read_text().strip()}",
                    remedy="See its message",
                )
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_START_S)


def _is_logged(place: _Place, lsn: Lsn) -> bool:
    log = configuration.load(place.config, environ={}).log.path
    return (log / "head").exists() and LogReader(log).end().lsn >= lsn


def _is_applied(place: _Place, lsn: Lsn) -> bool:
    row = place.connection.execute(
        "SELECT applied_lsn >= %s AND state = 'live' FROM penstock.progress", [str(lsn)]
    ).fetchone()
    return row is not None and bool(row[0])


@contextmanager
def _trigger(place: _Place, kind: str) -> Iterator[None]:
    place.connection.execute("TRUNCATE counted")
    before = _value(place, "SELECT count(*) FROM notifications")
    place.connection.execute(
        f"CREATE TRIGGER counting AFTER INSERT ON notifications {_TRIGGERS[kind]}".encode()
    )
    try:
        yield
    finally:
        place.connection.execute("DROP TRIGGER counting ON notifications")
    written = _value(place, "SELECT count(*) FROM notifications") - before
    if _value(place, "SELECT sum(count)::bigint FROM counted") != written:
        raise PenstockError(f"the {kind} trigger miscounted", remedy="Report this as a bug")


def _value(place: _Place, query: LiteralString) -> int:
    row = place.connection.execute(query).fetchone()
    return int(row[0] or 0) if row else 0


_WAYS: dict[str, Callable[[_Place], AbstractContextManager[None]]] = {
    "nothing": lambda _: nullcontext(),
    "capture": lambda place: _started(place, "capture"),
    "penstock run": lambda place: _started(place, "run"),
    "row trigger": lambda place: _trigger(place, "row"),
    "statement trigger": lambda place: _trigger(place, "statement"),
}
