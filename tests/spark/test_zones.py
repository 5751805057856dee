"""Zones that Spark does not know, in whatever function they are written."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from penstock.decode.types import Kind, ValueType
from penstock.errors import ConfigInvalidValue
from penstock.lsn import Lsn
from penstock.pipelines.binding import bind
from penstock.pipelines.expressions_checked import require_computable
from support.targets import declared

TYPES = {"c": ValueType(Kind.TIMESTAMPTZ), "y": ValueType(Kind.INTEGER)}
OF_ZONES = [
    "from_utc_timestamp(c, '{}')",
    "from_utc_timestamp(c, '{}' COLLATE UNICODE)",
    "to_utc_timestamp(c, '{}')",
    "convert_timezone('UTC', '{}', c)",
    "make_timestamp(y, '1', 1, 0, 0, 0, '{}')",
    "make_timestamp_ltz(y, 1, 1, 0, 0, 0, '{}')",
    "try_make_timestamp(y, 1, 1, 0, 0, 0, '{}')",
    "try_make_timestamp_ltz(y, 1, 1, 0, 0, 0, '{}')",
]


def check(spark: SparkSession, expression: str) -> None:
    config = declared(dimensions={"x": f"cast({expression} AS date)"})
    types = {each.table: TYPES for each in config.sources}
    require_computable(spark, [bind(config, types, Lsn(1))])


def test_unknown_zones_are_found_in_all_functions_of_zones(spark: SparkSession) -> None:  # M5.2
    for function in OF_ZONES:
        check(spark, function.format("Europe/London"))
        with pytest.raises(ConfigInvalidValue, match="does not know: Nope/Zone"):
            check(spark, function.format("Nope/Zone"))
