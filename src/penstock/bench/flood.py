"""A flood of WAL on a table that is not published: the slot follows, and capture stays healthy."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psycopg

from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.bench.service import capture_service, flushed
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.postgres.embedded import EmbeddedPostgres

MEGABYTES = 1_000
_BATCH_MB = 20
_UNCONFIRMED_GOAL = 1_000_000
_GOAL_S = 5.0
_LIMIT_S = 120.0
# Rows of a kilobyte, not compressible.
_FILL = """
INSERT INTO unpublished
SELECT string_agg(md5(random()::text), '') FROM generate_series(1, %s) AS row,
       generate_series(1, 32) GROUP BY row
"""


def bench_flood(progress: Progress, *, megabytes: int = MEGABYTES) -> Report:
    settings: dict[str, str | int] = {"max_wal_size": "1GB"}
    with (
        EmbeddedPostgres(18, settings=settings) as server,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE published (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE unpublished (body text)")
        with capture_service(server, Path(directory), "public.published") as service:
            before = flushed(connection)
            worst = 0
            while flushed(connection) - before < megabytes * 1_000_000:
                connection.execute(_FILL, [_BATCH_MB * 1000])
                worst = max(worst, _unconfirmed(connection))
                progress(f"{(flushed(connection) - before) / 1e6:,.0f} MB")
            written = flushed(connection) - before
            ended = time.monotonic()
            while _unconfirmed(connection) >= _UNCONFIRMED_GOAL:
                if time.monotonic() - ended > _LIMIT_S:
                    raise PenstockError("the slot does not follow", remedy="See the server's log")
                time.sleep(0.02)
            caught_up_s = time.monotonic() - ended
            connections = service.connections()
    return Report(
        "flood",
        [
            Figure("unconfirmed WAL under 1 MB after", round(caught_up_s, 2), "s", _GOAL_S, False),
            Figure("connections", connections, "", 1, at_least=False),
            Figure("WAL written", round(written / 1e6), "MB"),
            Figure("most unconfirmed meanwhile", round(worst / 1e6, 1), "MB"),
        ],
        [],
        {"postgres": server.full_version},
    )


def _unconfirmed(connection: psycopg.Connection) -> int:
    row = connection.execute(
        "SELECT pg_current_wal_flush_lsn()::text, confirmed_flush_lsn::text "
        "FROM pg_replication_slots"
    ).fetchone()
    if row is None:
        raise PenstockError("the slot is gone", remedy="See the server's log")
    return Lsn.parse(row[0]) - Lsn.parse(row[1])
