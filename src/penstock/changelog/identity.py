"""Who a log is: `log.json`. Positions of another log are refused, never compared."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.changelog.format import FORMAT_VERSION
from penstock.changelog.storage import Storage
from penstock.errors import LogForeign, LogFormatUnknown, LogMissing
from penstock.lsn import Lsn

FILE = "log.json"
# What may be in a directory before a log is begun there: the lock of the writer that is about to,
# and what a file system puts into its root.
_HARMLESS = frozenset({"writer.lock", "lost+found"})


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The log's id, and which server, database and slot it comes from."""

    log_id: uuid.UUID
    system_id: str
    timeline: int
    database: str
    slot: str
    # The log knows nothing at or below.
    start_lsn: Lsn
    created_at: str

    @classmethod
    def new(
        cls, *, system_id: str, timeline: int, database: str, slot: str, start_lsn: Lsn
    ) -> LogIdentity:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(uuid.uuid4(), system_id, timeline, database, slot, start_lsn, now)


def write_identity(storage: Storage, identity: LogIdentity) -> None:
    fields = {
        "format": FORMAT_VERSION,
        "id": str(identity.log_id),
        "system_id": identity.system_id,
        "timeline": identity.timeline,
        "database": identity.database,
        "slot": identity.slot,
        "start_lsn": str(identity.start_lsn),
        "created_at": identity.created_at,
    }
    storage.replace(FILE, json.dumps(fields, indent=2).encode() + b"\n")


def check_empty(storage: Storage, where: str) -> None:
    """Raises `LogForeign` if something is there already: somebody's files, or a log's remains."""
    found = next((name for name in storage.names("") if name not in _HARMLESS), None)
    if found is not None:
        raise LogForeign(
            f"{where} holds something else ({found}) and no {FILE}",
            remedy="Name an empty or a new directory in [log]; the files in it are left alone",
            path=where,
        )


def read_identity(storage: Storage, where: str) -> LogIdentity:
    """Raises `LogMissing`, `LogForeign` or `LogFormatUnknown`; `where` names the log in them."""
    try:
        text = storage.read(FILE)
    except (FileNotFoundError, NotADirectoryError):
        raise LogMissing(
            f"there is no change log in {where}",
            remedy="Check the path, and that capture has been started",
            path=where,
        ) from None
    try:
        fields: dict[str, Any] = json.loads(text)
        version = int(fields["format"])
        if version > FORMAT_VERSION:
            raise LogFormatUnknown(where, version, readable=FORMAT_VERSION)
        return LogIdentity(
            uuid.UUID(fields["id"]),
            fields["system_id"],
            int(fields["timeline"]),
            fields["database"],
            fields["slot"],
            Lsn.parse(fields["start_lsn"]),
            fields["created_at"],
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LogForeign(
            f"{FILE} in {where} is not that of a change log",
            remedy="Name another directory in [log]; this one is left as it is",
            path=where,
        ) from None
