"""A known amount of WAL waiting on a slot, again and again the same: one slot for each run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from penstock.bench.notifications import create_table
from penstock.bench.progress import Progress
from penstock.lsn import Lsn
from penstock.postgres.embedded import EmbeddedPostgres

PUBLICATION = "bench"

_FILL = """
CREATE PROCEDURE fill(transactions int, rows_each int) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..transactions LOOP
    INSERT INTO notifications
    SELECT gen_random_uuid(), md5('service' || (random() * 50)::int)::uuid,
           md5('template' || (random() * 500)::int)::uuid, NULL, 'email', 'normal', 'created',
           now(), NULL
      FROM generate_series(1, rows_each);
    COMMIT;
  END LOOP;
END $$
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """A server whose `slots` all wait before the same changes, which end at `end_lsn`."""

    server: EmbeddedPostgres
    slots: tuple[str, ...]
    end_lsn: Lsn
    changes: int


@contextmanager
def notifications_backlog(
    *, slots: int, inserts: int, rows_each: int = 100, update: bool = True, progress: Progress
) -> Iterator[Backlog]:
    """`inserts` rows in transactions of `rows_each`, then perhaps one update of them all."""
    settings: dict[str, str | int] = {
        "max_replication_slots": slots + 2,
        "max_wal_senders": slots + 2,
        # All of it stays in the page cache, and no checkpoint falls into a measurement.
        "max_wal_size": "16GB",
        "checkpoint_timeout": "1h",
        "shared_buffers": "512MB",
        "autovacuum": "off",
    }
    with EmbeddedPostgres(18, settings=settings) as server:
        changes = 2 * inserts if update else inserts
        progress(f"making a backlog of {changes:,} changes")
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            create_table(connection)
            connection.execute(
                "ALTER TABLE notifications REPLICA IDENTITY USING INDEX notifications_id_status"
            )
            connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE notifications")
            names = tuple(f"bench_{number}" for number in range(slots))
            for name in names:
                connection.execute(
                    "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name]
                )
            connection.execute("SET synchronous_commit = off")
            connection.execute(_FILL)
            connection.execute(f"CALL fill({inserts // rows_each}, {rows_each})".encode())
            if update:
                connection.execute(
                    "UPDATE notifications SET notification_status = 'sending', updated_at = now()"
                )
            connection.execute("CHECKPOINT")
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        yield Backlog(server, names, Lsn.parse(row[0] if row else "0/0"), changes)
