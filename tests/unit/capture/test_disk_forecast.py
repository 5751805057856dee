"""A disk that will be full within a day is reported while there is time. M7.3"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.capture.disk_forecast import DiskForecast, DiskUse

GIB = 2**30
# 200 changes a second, not compressed.
RATE = 3.7 * GIB / 86400


def warnings(
    forecast: DiskForecast, *, hours: float, disk_gib: float, history: float = 1.0
) -> Iterator[tuple[float, dict[str, str]]]:
    """Let the log grow, of which a share is applied everywhere."""
    for step in range(int(hours * 120)):
        now = step * 30.0
        log_bytes = int(RATE * now)
        use = DiskUse(log_bytes, int(log_bytes * history), int(disk_gib * GIB) - log_bytes)
        if (facts := forecast.warning(use, now)) is not None:
            yield now, facts


def test_a_small_disk_is_reported_hours_before_it_is_full() -> None:
    found = list(warnings(DiskForecast(10 * GIB, None), hours=2.9, disk_gib=2))
    # Growth is measured first; later it is repeated each hour.
    assert [now for now, _ in found] == [300.0, 3900.0, 7500.0]
    first = found[0][1]
    assert first["grows_by"] == "3.7 GiB a day"
    assert first["full_in"] == "12 h 53 min"
    assert first["free"] == "2.0 GiB"
    assert "max_history_gib" in first["remedy"]


def test_what_is_bounded_before_the_disk_is_full_is_not_reported() -> None:
    assert not list(warnings(DiskForecast(GIB, None), hours=10, disk_gib=2))
    assert not list(warnings(DiskForecast(None, GIB), hours=10, disk_gib=2))
    assert not list(warnings(DiskForecast(10 * GIB, None), hours=10, disk_gib=100))


def test_consumers_that_lag_have_no_bound_but_the_budget() -> None:
    found = list(warnings(DiskForecast(GIB, None), hours=6, disk_gib=2, history=0.0))
    assert "penstock log consumers" in found[0][1]["remedy"]
    assert not list(warnings(DiskForecast(GIB, GIB), hours=6, disk_gib=2, history=0.0))


def test_a_log_that_does_not_grow_is_not_reported() -> None:
    forecast = DiskForecast(10 * GIB, None)
    for now in range(0, 7200, 30):
        assert forecast.warning(DiskUse(GIB, GIB, 1000), float(now)) is None
