"""Marks the primary key in descriptions of tables whose replica identity is another one.

The server describes a table by its replica identity: with FULL every column is in it, and nothing
in the stream says which ones are the primary key. So capture asks the catalog when such a table is
described, and the log keeps the answer with the description (`postgres/primary_key.py`). The
catalog is as of now, not as of the change; a table whose key changes is described again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import structlog

from penstock.errors import PenstockError
from penstock.postgres.connect import connect
from penstock.postgres.primary_key import described_otherwise, with_primary_key

_log = structlog.get_logger(__name__)

# Streamed transactions describe a table again and again.
_KEPT_S = 1.0
# Capture waits for the answer. Without one it goes on, and does not ask again for a while.
_CONNECT_TIMEOUT_S = 2
_STATEMENT_TIMEOUT_MS = 1000
_PAUSE_S = 60.0
# As bytes: a name need not be valid text.
_STATEMENT = """
SELECT textsend(a.attname::text)
  FROM pg_catalog.pg_index AS i
 CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
  JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = %s::oid AND i.indisprimary AND i.indisvalid AND k.position <= i.indnkeyatts
"""


class PrimaryKeys:
    """Used by one thread, as long as one replication connection lasts; to be closed."""

    def __init__(self, dsn: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._dsn = dsn
        self._clock = clock
        self._connection: psycopg.Connection[Any] | None = None
        self._known: dict[int, tuple[float, frozenset[bytes]]] = {}
        self._not_before = float("-inf")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def marked(self, payload: bytes) -> bytes:
        """Return the description with its primary key marked, where the identity is another."""
        oid = described_otherwise(payload)
        return payload if oid is None else with_primary_key(payload, self._of(oid))

    def _of(self, oid: int) -> frozenset[bytes]:
        now = self._clock()
        read_at, key = self._known.get(oid, (float("-inf"), frozenset()))
        if now - read_at < _KEPT_S or now < self._not_before:
            return key
        try:
            key = frozenset(bytes(name) for (name,) in self._connected().execute(_STATEMENT, [oid]))
        except (PenstockError, psycopg.Error) as error:
            self.close()
            self._not_before = now + _PAUSE_S
            reason = error.problem if isinstance(error, PenstockError) else error.sqlstate
            _log.warning("primary keys not read", reason=reason, again_in_s=round(_PAUSE_S))
            return key
        self._known[oid] = (now, key)
        return key

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = connect(
                self._dsn,
                application_name="penstock primary keys",
                connect_timeout=_CONNECT_TIMEOUT_S,
                options=f"-c statement_timeout={_STATEMENT_TIMEOUT_MS}",
            )
        return self._connection
