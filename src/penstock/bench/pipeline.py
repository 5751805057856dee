"""From a slot with a backlog to correct counts: beside `pg_recvlogical`, and beside polling.

All three read the same backlog, each from a slot of its own, on one server; who is first changes
from run to run. The job runs and is warm; it follows the log, which stands still while capture does
not run and the backlog is made. The clock runs from the moment capture has the slot to the counts:
Python's own start, half a second, is left out, for capture is a service.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from penstock.bench.backlog import Backlog
from penstock.bench.counting import applied, capturing, configured, following, prepare
from penstock.bench.polling_by_hand import TABLE as POLLED
from penstock.bench.polling_by_hand import poll
from penstock.bench.progress import Progress
from penstock.bench.recvlogical import pg_recvlogical
from penstock.bench.report import Figure, Report
from penstock.bench.service import flushed
from penstock.beside import Check
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.interrupts import Interrupts
from penstock.lsn import ZERO
from penstock.pipelines.running import job_session
from penstock.postgres.embedded import EmbeddedPostgres

CHANGES = 1_000_000
REPEATS = 3
_GOAL_RECVLOGICAL = 0.8
_GOAL_POLLING = 2.0
# wal2json is there for 15.
_VERSION = 15
_OURS, _POLLED = "bench_ours", "bench_polled"
BACKLOG_SETTINGS: dict[str, str | int] = {
    "max_replication_slots": 20,
    "max_wal_senders": 20,
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "autovacuum": "off",
}
# Transactions of 100 rows, as an application makes them: half of the changes are inserts, and half
# are the updates of those rows to the next status. A template belongs to a service.
FILL = """
CREATE PROCEDURE fill(transactions int, rows_each int) LANGUAGE plpgsql AS $$
DECLARE made uuid[];
BEGIN
  FOR i IN 1..transactions LOOP
    WITH drawn AS (SELECT (random() * 500)::int AS t FROM generate_series(1, rows_each)),
    new AS (
      INSERT INTO notifications
      SELECT gen_random_uuid(), md5('service' || t % 50)::uuid, md5('template' || t)::uuid, NULL,
             'email', 'normal', 'created', now(), NULL FROM drawn
      RETURNING id
    )
    SELECT array_agg(id) INTO made FROM new;
    COMMIT;
    UPDATE notifications SET notification_status = 'sending', updated_at = now()
     WHERE id = ANY (made);
    COMMIT;
  END LOOP;
END $$
"""


def bench_pipeline(
    progress: Progress,
    *,
    changes: int = CHANGES,
    repeats: int = REPEATS,
    warm_up_s: float = 30.0,
) -> Report:
    runs = []
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        interrupts = stack.enter_context(Interrupts())
        server = stack.enter_context(
            EmbeddedPostgres(_VERSION, settings=BACKLOG_SETTINGS, output_plugins=["wal2json"])
        )
        connection = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        _prepare(connection)
        config = configured(server.dsn(), root, _OURS, seed=False)
        with capturing(config, root):
            progress("starting Spark")
            spark = stack.enter_context(job_session(root / "spark", interrupts, master="local[2]"))
            check = stack.enter_context(following(config, spark))
            applied(connection, ZERO, check)
            progress(f"small transactions for {warm_up_s:g} s, to warm up")
            _trickle(connection, warm_up_s)
            applied(connection, flushed(connection), check)
        poll(server.dsn(), _POLLED, flushed(connection))
        for number in range(repeats + 1):
            # The first, of a fifth, is to warm up.
            size = changes if number else changes // 5
            run = _run(server, connection, config, check, number, size, progress)
            if number:
                runs.append(run)
        version = server.full_version
    ratio = statistics.median(run["pg_recvlogical_s"] / run["penstock_s"] for run in runs)
    polled = statistics.median(run["polling_s"] / run["penstock_s"] for run in runs)
    rate = statistics.median(run["changes"] / run["penstock_s"] for run in runs)
    return Report(
        "pipeline",
        [
            Figure("rate ratio to pg_recvlogical", round(ratio, 3), "ratio", _GOAL_RECVLOGICAL),
            Figure("rate ratio to polling", round(polled, 2), "ratio", _GOAL_POLLING),
            Figure("slot to counts", round(rate), "changes/s"),
        ],
        runs,
        {"postgres": version},
    )


def _prepare(connection: psycopg.Connection[Any]) -> None:
    prepare(connection)
    connection.execute(FILL)
    connection.execute(POLLED)
    for slot, plugin in ((_OURS, "pgoutput"), (_POLLED, "wal2json")):
        connection.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [slot, plugin])


def fill(
    connection: psycopg.Connection[Any],
    transactions: int,
    *,
    rows_each: int = 100,
    synchronous_commit: str = "off",
) -> None:
    # Without statistics the table looks small. Not for other statements: what is so dear on paper
    # would be compiled first.
    settings = {"enable_seqscan": "off", "synchronous_commit": synchronous_commit}
    for name, value in settings.items():
        connection.execute(f"SET {name} = {value}".encode())
    connection.execute(f"CALL fill({transactions}, {rows_each})".encode())
    for name in settings:
        connection.execute(f"RESET {name}".encode())


def _trickle(connection: psycopg.Connection[Any], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        fill(connection, 1, rows_each=20)
        time.sleep(0.05)


def _run(
    server: EmbeddedPostgres,
    connection: psycopg.Connection[Any],
    config: Config,
    check: Check,
    number: int,
    changes: int,
    progress: Progress,
) -> dict[str, float]:
    peer = f"bench_peer_{number}"
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [peer])
    progress(f"a backlog of {changes:,} changes")
    fill(connection, changes // 200 - 1)
    connection.execute("CHECKPOINT")
    # The last commit is the end: what the server writes after it brings no count any further.
    fill(connection, 1, synchronous_commit="on")
    end = flushed(connection)

    def ours() -> float:
        with capturing(config, config.log.path.parent):
            _await_reader(connection, _OURS)
            started = time.perf_counter()
            applied(connection, end, check)
            return time.perf_counter() - started

    def recvlogical() -> float:
        return pg_recvlogical(Backlog(server, (peer,), end, changes), peer).seconds

    def polling() -> float:
        started = time.perf_counter()
        counted = poll(server.dsn(), _POLLED, end)
        took_s = time.perf_counter() - started
        _require(counted == changes, f"polling counted {counted} of {changes} changes")
        return took_s

    turns = {"penstock_s": ours, "pg_recvlogical_s": recvlogical, "polling_s": polling}
    names = list(turns)
    first = number % len(names)
    took = {name: turns[name]() for name in names[first:] + names[:first]}
    _check(connection)
    connection.execute("SELECT pg_drop_replication_slot(%s)", [peer])
    note = f"run {number}" if number else "to warm up"
    told = (f"{name.removesuffix('_s')} {seconds:.2f} s" for name, seconds in took.items())
    progress(f"{note}: {', '.join(told)}")
    return {"changes": changes, **took}


def _await_reader(connection: psycopg.Connection[Any], slot: str) -> None:
    while True:
        row = connection.execute(
            "SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]
        ).fetchone()
        if row is not None and row[0]:
            return
        time.sleep(0.002)


def _check(connection: psycopg.Connection[Any]) -> None:
    """Both must have counted right."""
    dimensions = "service_id, template_id, notification_type, notification_status"
    truth = f"SELECT {dimensions}, count(*) FROM notifications GROUP BY {dimensions}"  # noqa: S608
    for table in ("ft_service_stats", "polled_stats"):
        shown = f"SELECT {dimensions}, count FROM {table} WHERE count <> 0"  # noqa: S608
        different = f"(({shown}) EXCEPT ({truth})) UNION ALL (({truth}) EXCEPT ({shown}))"
        (wrong,) = connection.execute(
            f"SELECT count(*) FROM ({different}) AS d".encode()  # noqa: S608
        ).fetchone() or (None,)
        _require(wrong == 0, f"{table} is wrong in {wrong} rows")


def _require(is_right: bool, problem: str) -> None:
    if not is_right:
        raise PenstockError(problem, remedy="Report this as a bug")
