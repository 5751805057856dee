"""Readers in other processes follow while capture writes, and cost nothing while it does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.changelog.reader import LogReader
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.waiting import eventually
from support.workload import Writers, insert_items, prepare

# Prints each commit's LSN as soon as it may be read.
FOLLOW = """
import sys
from pathlib import Path
from penstock.changelog.reader import LogReader
reader = LogReader(Path(sys.argv[1]))
position = reader.start()
while True:
    if reader.wait(position.lsn, 60):
        end = reader.end()
        for transaction in reader.transactions(position, end):
            print(int(transaction.commit_lsn), flush=True)
        position = end
"""
IDLE_S = 3.0


@contextmanager
def following(log: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", FOLLOW, str(log)], stdout=file)
        try:
            yield process
            assert process.poll() is None, "the reader has ended"
        finally:
            process.kill()
            process.wait(10)


def seen(output: Path) -> list[int]:
    """The whole lines so far."""
    return [int(line) for line in output.read_bytes().split(b"\n")[:-1]]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_reader_in_another_process_sees_every_commit_in_order_and_sleeps_in_between(
    database18: Database, tmp_path: Path
) -> None:
    # M3.3, M3.8
    prepare(database18)
    log, output = tmp_path / "log", tmp_path / "seen"
    mirror = Mirror(log)
    with capturing(capture_config(database18.dsn(), log)):
        mirror.must_equal(database18)
        with following(log, output) as reader:
            with Writers(database18, 2) as writers:
                writers.await_commits(20)
            mirror.must_equal(database18)
            eventually(lambda: seen(output) == mirror.commits, "all of it, in order")

            before, started = cpu_s(reader.pid), LogReader(log).head().counter
            time.sleep(IDLE_S)
            assert LogReader(log).head().counter - started <= 2 * IDLE_S, "nothing happens"
            assert cpu_s(reader.pid) - before < 0.02 * IDLE_S, "and nobody spins"

            with database18.connect() as connection:
                insert_items(connection, 1)
            committed = time.monotonic()
            eventually(lambda: len(seen(output)) == len(mirror.commits) + 1, "woken")
            assert time.monotonic() - committed < 1.0
