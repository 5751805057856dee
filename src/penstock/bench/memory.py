"""How much memory capture takes for one very large transaction, streamed and not."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import psycopg

from penstock.bench.progress import Progress
from penstock.bench.report import Figure, Report
from penstock.bench.service import Service, capture_service, flushed
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.postgres.embedded import EmbeddedPostgres

CHANGES = 3_000_000
_GOAL_MIB = 64
_SAMPLE_S = 0.01
_LIMIT_S = 600.0
# So much memory for decoding that the server never streams.
_NOT_STREAMED = "-c logical_decoding_work_mem=4GB"
_INSERT = """
INSERT INTO large SELECT g, md5(g::text) || md5((g + 1)::text) || md5((g + 2)::text)
                            || md5((g + 3)::text) || md5((g + 4)::text)
  FROM generate_series(1, %s) AS g
"""


def bench_memory(progress: Progress, *, changes: int = CHANGES) -> Report:
    figures, runs = [], []
    for form, options in (("streamed", ""), ("not streamed", _NOT_STREAMED)):
        progress(f"one transaction of {changes:,} changes, {form}")
        run = _measure(changes, options)
        runs.append({"form": form, **run})
        figures.append(
            Figure(
                f"peak above idle, {form}",
                round(run["peak_above_idle_mib"], 1),
                "MiB",
                _GOAL_MIB,
                at_least=False,
            )
        )
    return Report("memory", figures, runs)


def _measure(changes: int, options: str) -> dict[str, float]:
    settings: dict[str, str | int] = {"max_wal_size": "16GB", "shared_buffers": "256MB"}
    with (
        EmbeddedPostgres(18, settings=settings) as server,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE large (id int PRIMARY KEY, body text NOT NULL)")
        with capture_service(server, Path(directory), "public.large", options=options) as service:
            idle = _settled(service)
            peak = _Peak(service)
            peak.start()
            connection.execute(_INSERT, [changes])
            end = flushed(connection)
            if not service.reader().wait(Lsn(end - 1), _LIMIT_S):
                raise PenstockError("capture did not keep up", remedy="Try a faster disk")
            highest = peak.stop()
            reader = service.reader()
            found = sum(commit.changes for commit in reader.commits(reader.start(), reader.end()))
            size = sum(file.stat().st_size for file in service.log.rglob("*.seg"))
        if found != changes:
            raise PenstockError(
                f"the log holds {found} of {changes} changes", remedy="Report this as a bug"
            )
    return {
        "idle_mib": idle / 2**20,
        "peak_mib": highest / 2**20,
        "peak_above_idle_mib": (highest - idle) / 2**20,
        "log_mb": size / 1e6,
    }


def _settled(service: Service) -> int:
    time.sleep(1)
    return service.status("RssAnon")


class _Peak(threading.Thread):
    """Samples the anonymous memory of the process until it is stopped."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._done = threading.Event()
        self._highest = 0

    def run(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self._highest = max(self._highest, self._service.status("RssAnon"))

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self._highest
