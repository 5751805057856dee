"""How a log is written and how much of it is kept: [log] of the configuration in its own terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.changelog.format import Compression
from penstock.config import LogConfig


@dataclass(frozen=True, slots=True)
class LogSettings:
    # Large enough that opening files costs nothing, small enough that retention is fine-grained.
    segment_bytes: int = 64 * 2**20
    segment_age_s: float = 3600.0
    # What a reader holds in memory at once; and it bounds ours.
    frame_bytes: int = 2**20
    # A twentieth of capture's own CPU, and a third of the disk.
    compression: Compression = Compression.LZ4


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    # Long enough to look at yesterday's changes, or to add a consumer that replays them.
    min_age_s: float = 24 * 3600.0
    # None: no limit.
    max_bytes: int | None = None
    on_full: Literal["wait", "invalidate"] = "wait"
    # Of what everybody has applied, however young. None: no limit but the age.
    history_bytes: int | None = 10 * 2**30


def log_settings(config: LogConfig) -> LogSettings:
    return LogSettings(
        segment_bytes=int(config.segment_mib * 2**20),
        segment_age_s=config.segment_age_min * 60,
        compression=Compression[config.compression.upper()],
    )


def retention_settings(config: LogConfig) -> RetentionSettings:
    return RetentionSettings(
        min_age_s=config.min_age_h * 3600,
        max_bytes=None if config.max_gib is None else int(config.max_gib * 2**30),
        on_full=config.on_full,
        history_bytes=int(config.max_history_gib * 2**30),
    )
