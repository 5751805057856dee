"""A refusal to continue a log, kept in the log: `refused.json`.

Invariant: a log that was found not to belong to its server's history is never continued. The
refusal is on disk before anybody hears of it, and from then on capture, seeding and verify give the
same error, whatever the server looks like by then. A server that was restored from an older image
soon has more WAL than before, and nothing else would show that changes are missing.

A refusal that is only about the configuration (another server, another slot) or that passes (a
server in recovery, a connection) is not kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from penstock.changelog.storage import Storage
from penstock.errors import (
    LogNotContinued,
    PenstockError,
    ServerRewound,
    SlotAheadOfLog,
    WrongTimeline,
)

FILE = "refused.json"
_KEPT: dict[str, type[PenstockError]] = {
    kind.__name__: kind for kind in (ServerRewound, SlotAheadOfLog, WrongTimeline)
}


def check_not_refused(storage: Storage) -> None:
    """Raise what the log was refused with, if it was."""
    try:
        text = storage.read(FILE)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        fields = json.loads(text)
        name, problem, remedy = (str(fields[key]) for key in ("error", "problem", "remedy"))
    except (ValueError, KeyError, TypeError):
        # Whatever it said, it was there to keep the log from being continued.
        raise LogNotContinued(f"the log was refused before, and its {FILE} is damaged") from None
    kind = _KEPT.get(name)
    if kind is None:
        raise LogNotContinued(problem, remedy)
    error = kind.__new__(kind, problem)
    PenstockError.__init__(error, problem, remedy=remedy)
    raise error


@contextmanager
def kept_refusals(storage: Storage) -> Iterator[None]:
    """Keep a refusal that the block raises, if it is one for good."""
    try:
        yield
    except tuple(_KEPT.values()) as error:
        fields = {
            "error": type(error).__name__,
            "problem": error.problem,
            "remedy": error.remedy,
            "refused_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        storage.replace(FILE, json.dumps(fields, indent=2).encode() + b"\n")
        raise
