"""The change log of a configuration, if there is one yet. What is wrong with it is told by capture
and by `penstock log check`.
"""

from __future__ import annotations

from uuid import UUID

from penstock.changelog.identity import read_identity
from penstock.changelog.reader import LogReader
from penstock.changelog.storage import LocalStorage
from penstock.config import Config
from penstock.errors import LogError
from penstock.pipelines.held_log import LeftConsumer, left_consumers


def our_log_id(config: Config) -> UUID | None:
    try:
        return read_identity(LocalStorage(config.log.path), str(config.log.path)).log_id
    except (LogError, OSError):
        return None


def held_for_nobody(config: Config) -> list[LeftConsumer]:
    try:
        return left_consumers(config.aggregate, LogReader(config.log.path))
    except (LogError, OSError):
        return []
