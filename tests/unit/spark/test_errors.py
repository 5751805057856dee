"""Whose expression Spark could not compute, as exactly as its message lets us know."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from penstock.spark.errors import Place, failed

DAY = Place("counts", "dimension day", "(to_date(`at timestamp`)\n)")
NUMBER = Place("counts", "dimension number", "(cast(`code text` as int)\n)")
FILTER = Place("costs", "the filter", "(cast(`code text` as int) > 1\n)")
CAST = """[CAST_INVALID_INPUT] The value 'secret' of the type "STRING" cannot be cast to "INT".
== SQL (line 1, position 20) ==
...gate = 0 THEN (cast(`code text` as int)
                  ^^^^^^^^^^^^^^^^^^^^^^^^
"""
ZONE = "[INVALID_TIMEZONE] The timezone: secret is invalid"


@pytest.mark.parametrize(
    ("said", "places", "told"),
    [
        (CAST, (DAY, NUMBER), " for dimension number of aggregate counts"),
        (CAST, (DAY, FILTER), " for the filter of aggregate costs"),
        (CAST, (DAY, NUMBER, FILTER), " for aggregate counts or costs"),
        (ZONE, (DAY,), " for dimension day of aggregate counts"),
        (ZONE, (DAY, NUMBER), " for aggregate counts"),
        (ZONE, (), ""),
        ("[STREAM_FAILED] a Python worker is gone", (DAY,), ""),
    ],
)
def test_the_aggregate_is_named_and_no_value(
    said: str, places: tuple[Place, ...], told: str
) -> None:  # M7.3
    problem = failed(PySparkException(said), places).problem
    assert problem.startswith(f"Spark's work{told} failed: ")
    assert "secret" not in problem
