"""`penstock capture` as a process of its own, for benchmarks that look at it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from penstock import config as configuration
from penstock.changelog.reader import LogReader
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.ops.setup import setup
from penstock.postgres.embedded import EmbeddedPostgres

_START_S = 30.0


@dataclass(frozen=True, slots=True)
class Service:
    """A running capture, its log, and what it says on stderr."""

    process: subprocess.Popen[bytes]
    log: Path
    said: Path

    def reader(self) -> LogReader:
        return LogReader(self.log)

    def connections(self) -> int:
        return self.said.read_text().count("following")

    def cpu_seconds(self) -> float:
        """Return what the process has taken of all cores since its start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def status(self, field: str) -> int:
        """A field of /proc/…/status in bytes, such as RssAnon."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0]) * 1024
        raise KeyError(field)


@contextmanager
def capture_service(
    server: EmbeddedPostgres, directory: Path, table: str, *, options: str = ""
) -> Iterator[Service]:
    """Set up the source, start capture, and wait until it follows."""
    dsn = server.dsn(options=options) if options else server.dsn()
    file = directory / "penstock.toml"
    file.write_text(f'[source]\ndsn = "{dsn}"\ntables = ["{table}"]\n')
    loaded = configuration.load(file, environ={})
    setup(loaded)
    said = directory / "capture.log"
    program = Path(sys.executable).parent / "penstock"
    with said.open("wb") as output:
        process = subprocess.Popen([program, "capture", "-c", file], stderr=output)
    service = Service(process, loaded.log.path, said)
    try:
        _await_start(service, server)
        yield service
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_START_S)


def flushed(connection: psycopg.Connection) -> Lsn:
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    return Lsn.parse(row[0] if row else "0/0")


def _await_start(service: Service, server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        now = flushed(connection)
    while not (service.log / "head").exists():
        if service.process.poll() is not None:
            raise PenstockError(
                f"capture ended: {service.said.read_text().strip()}", remedy="See its message"
            )
        try:
            service.process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    if not service.reader().wait(Lsn(now - 1), _START_S):
        raise PenstockError("capture did not start", remedy=f"See {service.said}")
