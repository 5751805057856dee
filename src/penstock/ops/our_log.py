"""Which change log a configuration has, if any yet."""

from __future__ import annotations

from uuid import UUID

from penstock.changelog.identity import read_identity
from penstock.changelog.storage import LocalStorage
from penstock.config import Config
from penstock.errors import LogError


def our_log_id(config: Config) -> UUID | None:
    """What is wrong with the log itself is told by capture and by `penstock log check`."""
    try:
        return read_identity(LocalStorage(config.log.path), str(config.log.path)).log_id
    except (LogError, OSError):
        return None
