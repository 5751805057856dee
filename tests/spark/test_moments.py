"""Moments that are read by the minute: of which expressions, and that nothing is another for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.decode.minutes import EXACT_BEFORE, minutes
from penstock.decode.types import Kind, ValueType
from penstock.lsn import Lsn
from penstock.pipelines.binding import bind
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.moments import _ZONE, by_minute
from support.targets import declared

TYPES = {
    "c": ValueType(Kind.TIMESTAMPTZ),
    "a": ValueType(Kind.TIMESTAMPTZ),
    "n": ValueType(Kind.TIMESTAMP),
    "d": ValueType(Kind.DATE),
    "s": ValueType(Kind.TEXT),
}
BY_MINUTE = [
    "to_date(from_utc_timestamp(c, 'Europe/London'))",
    "to_date(from_utc_timestamp(n, 'America/Argentina/Buenos_Aires'))",
    "cast(c AS date)",
    "date(n)",
    "c::date",
    "date_trunc('HOUR', from_utc_timestamp(c, 'Asia/Kathmandu'))",
    "date_trunc('minute', c)",
    "trunc(c, 'MM')",
    "hour(from_utc_timestamp(c, 'Australia/Lord_Howe'))",
    "minute(n)",
    "year(c)",
    "weekofyear(c)",
    "dayofweek(from_utc_timestamp(c, 'Etc/GMT+5'))",
    "extract(HOUR FROM c)",
    "date_part('month', n)",
    "last_day(c)",
    "cast(convert_timezone('UTC', 'America/St_Johns', n) AS date)",
    "to_date(to_utc_timestamp(c, 'Africa/Monrovia'))",
    "to_date(coalesce(a, c))",
    "to_date(nvl(a, n))",
    "a IS NULL AND n IS NOT NULL",
    "CASE WHEN s = 'x' THEN to_date(c) ELSE d END",
]
# With the columns that are read exactly.
EXACT = {
    "c": "c",
    "second(c)": "c",
    "date_trunc('SECOND', c)": "c",
    "concat(date_trunc(s, c), s)": "c",
    "extract(SECOND FROM c)": "c",
    "unix_seconds(c)": "c",
    "cast(c AS string)": "c",
    "to_date(cast(c AS string))": "c",
    "to_date(n, 'yyyy')": "n",
    "c > a": "ac",
    "datediff(SECOND, a, c)": "ac",
    "to_date(from_utc_timestamp(c, '+01:02:03'))": "c",
    "to_date(from_utc_timestamp(c, 'UTC+010203'))": "c",
    "to_date(from_utc_timestamp(c, s))": "c",
    "to_date(from_utc_timestamp(c, concat('Europe', '/London')))": "c",
    "to_date(c + INTERVAL 30 SECONDS)": "c",
    "to_date(CASE WHEN c > a THEN a ELSE c END)": "ac",
    "concat(to_date(c), second(c))": "c",
    "hash(to_date(c), a)": "a",
    "to_date(greatest(a, c))": "ac",
    "window(c, '1 hour').start": "c",
    "concat(to_date(c), window(c, '1 hour').start)": "c",
}


def read_by_minute(spark: SparkSession, **declaration: Any) -> set[str]:
    config = declared(**declaration)
    types = {each.table: TYPES for each in config.sources}
    bound = by_minute(bind(config, types, Lsn(1)), spark)
    return {each.name for each in bound.summed.keys if each.by_minute}


def moments_of(expression: str) -> set[str]:
    return {name for name in "acn" if re.search(rf"\b{name}\b(?!:?\w*\()", expression)}


def test_moments_are_read_by_the_minute_where_nothing_finer_is_asked(
    spark: SparkSession,
) -> None:  # M5.2
    for expression in BY_MINUTE:
        found = read_by_minute(spark, dimensions={"x": expression})
        assert found == moments_of(expression) != set(), expression


def test_moments_are_exact_where_something_finer_or_unknown_is_asked(
    spark: SparkSession,
) -> None:  # M5.2
    for expression, exact in EXACT.items():
        found = read_by_minute(spark, dimensions={"x": expression})
        assert found == moments_of(expression) - set(exact), expression


@pytest.mark.parametrize(
    "declaration",
    [
        {"dimensions": {"day": "to_date(c)", "c": "c"}},
        {"dimensions": {"day": "to_date(c)", "second": "second(c)"}},
        {"dimensions": {"day": "to_date(c)"}, "filter": "c > timestamp '2026-01-01 00:00:30'"},
        {"dimensions": {"s": "s"}, "filter": "unix_micros(c) % 2 = 0"},
    ],
    ids=["a dimension", "another expression", "the filter", "only the filter"],
)
def test_one_place_that_asks_for_more_gets_it(
    spark: SparkSession, declaration: dict[str, Any]
) -> None:  # M5.2
    assert read_by_minute(spark, **declaration) == set()


def test_a_filter_that_asks_for_the_day_leaves_it_at_that(spark: SparkSession) -> None:  # M5.2
    filtered = {"dimensions": ["s"], "filter": "to_date(c) > date '2026-01-01'"}
    assert read_by_minute(spark, **filtered) == {"c"}


def zones(spark: SparkSession) -> list[str]:
    """All that Spark's Java knows."""
    known = spark._jvm.java.time.ZoneId.getAvailableZoneIds()  # type: ignore[union-attr]
    return sorted(filter(_ZONE.fullmatch, known))


def test_since_the_year_from_which_on_minutes_are_enough_clocks_differ_by_whole_minutes(
    spark: SparkSession,
) -> None:  # M5.2: else a day could begin within a minute
    whole = re.compile(r"T\d\d:\d\d(?:Z|[+-]\d\d:\d\d) to (?:Z|[+-]\d\d:\d\d)\]")
    in_seconds = []
    for zone in zones(spark):
        rules = spark._jvm.java.time.ZoneId.of(zone).getRules()  # type: ignore[union-attr]
        listed = rules.getTransitions().toString()
        for at, change in re.findall(r" at ((\d{4})-[^]]+\])", listed):
            if int(change) >= EXACT_BEFORE.year - 1 and not whole.search(at):
                in_seconds.append((zone, at))
        # What comes after them, for ever.
        assert not re.search(r"\d\d:\d\d:\d\d", rules.getTransitionRules().toString()), zone
        offset = rules.getOffset(_instant(spark, EXACT_BEFORE)).toString()
        assert re.fullmatch(r"Z|[+-]\d\d:\d\d", offset), zone
    # The last one, which is why.
    assert {zone for zone, _ in in_seconds} == {"Africa/Monrovia"}
    assert all(at.startswith("1972-01-07") for _, at in in_seconds)


def _instant(spark: SparkSession, moment: datetime) -> Any:
    return spark._jvm.java.time.Instant.parse(moment.isoformat().replace("+00:00", "Z"))  # type: ignore[union-attr]


def test_what_is_computed_of_minutes_is_what_is_computed_of_moments(
    spark: SparkSession,
) -> None:  # M5.2: around changes of clocks, in zones where these are odd
    with_meaning(spark)
    moments = sorted(_around_changes(spark))
    rows = pa.table({name: _column(moments, name) for name in "can"})
    by_minutes = pa.table({name: minutes(rows[name].combine_chunks()) for name in "can"})
    assert by_minutes != rows
    expressions = [each for each in BY_MINUTE if not re.search(r"\b[sd]\b", each)]
    for zone in ODD:
        expressions.append(f"to_date(from_utc_timestamp(c, '{zone}'))")
        expressions.append(f"hour(to_utc_timestamp(n, '{zone}'))")
        expressions.append(f"minute(convert_timezone('UTC', '{zone}', n))")

    def computed(table: pa.Table) -> pa.Table:
        frame: DataFrame = spark.createDataFrame(table)
        return frame.selectExpr(*expressions).toArrow()

    assert computed(by_minutes) == computed(rows)


# St John's changed its clocks at 00:01, Lord Howe by half an hour, Samoa left out a day.
ODD = [
    *("America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"),
    *("Africa/Monrovia", "America/Sao_Paulo", "Atlantic/Azores", "Asia/Pyongyang"),
]


def _around_changes(spark: SparkSession) -> Iterator[datetime]:
    seconds = [-60.0, -0.000001, 0, 0.5, 30, 59.999999, 60, 3600.25, 86399.75]
    for zone in ODD:
        rules = spark._jvm.java.time.ZoneId.of(zone).getRules()  # type: ignore[union-attr]
        changes = rules.getTransitions()
        for number in range(max(changes.size() - 40, 0), changes.size()):
            change = datetime.fromtimestamp(changes.get(number).toEpochSecond(), UTC)
            yield from (change + timedelta(seconds=each) for each in seconds)
    yield from (datetime(1900, 1, 1, tzinfo=UTC) + timedelta(seconds=each) for each in seconds)


def _column(moments: list[datetime], name: str) -> pa.Array:
    # Not everywhere the same.
    shift = timedelta(hours=12, seconds=7) if name == "a" else timedelta(0)
    array = pa.array([each + shift for each in moments], pa.timestamp("us", "UTC"))
    return array.cast(pa.timestamp("us")) if name == "n" else array
