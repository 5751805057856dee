"""Clients that commit small transactions at a steady rate: a process of its own.

usage: python -m penstock.bench.committers DSN RATE SECONDS

Prints, at the end, one line for each transaction: its xid and when its commit returned, on the
machine's monotonic clock.
"""

from __future__ import annotations

import sys
import threading
import time

import psycopg

_CLIENTS = 4


def main() -> None:
    dsn, rate, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    committed: list[tuple[str, float]] = []
    threads = [
        threading.Thread(target=_client, args=(dsn, rate / _CLIENTS, seconds, client, committed))
        for client in range(_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.writelines(f"{xid} {at:.6f}\n" for xid, at in committed)


def _client(
    dsn: str, rate: float, seconds: float, client: int, committed: list[tuple[str, float]]
) -> None:
    statement = "INSERT INTO beats VALUES (%s) RETURNING pg_current_xact_id()::text"
    with psycopg.connect(dsn, autocommit=True) as connection:
        started = time.monotonic()
        for turn in range(int(rate * seconds)):
            due = started + turn / rate
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
            row = connection.execute(statement, [turn * _CLIENTS + client], prepare=True).fetchone()
            if row is not None:
                committed.append((row[0], time.monotonic()))


if __name__ == "__main__":
    main()
