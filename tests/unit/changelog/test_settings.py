"""[log] of the configuration becomes what the writer and retention go by."""

from __future__ import annotations

from penstock.changelog.format import Compression
from penstock.changelog.settings import (
    LogSettings,
    RetentionSettings,
    log_settings,
    retention_settings,
)
from penstock.config import LogConfig


def test_the_configurations_defaults_are_the_settings_defaults() -> None:
    assert retention_settings(LogConfig()) == RetentionSettings()
    assert log_settings(LogConfig()).segment_bytes == LogSettings().segment_bytes
    assert log_settings(LogConfig()).segment_age_s == LogSettings().segment_age_s


def test_a_log_is_compressed_unless_that_is_switched_off() -> None:
    assert log_settings(LogConfig()).compression is Compression.LZ4
    assert LogSettings().compression is Compression.LZ4
    assert log_settings(LogConfig(compression="none")).compression is Compression.NONE


def test_units_are_converted() -> None:
    config = LogConfig(
        segment_mib=2,
        segment_age_min=3,
        compression="zstd",
        min_age_h=0.5,
        max_gib=1.5,
        on_full="invalidate",
        max_history_gib=2,
    )
    assert log_settings(config) == LogSettings(2 * 2**20, 180.0, compression=Compression.ZSTD)
    assert retention_settings(config) == RetentionSettings(1800.0, 3 * 2**29, "invalidate", 2**31)
