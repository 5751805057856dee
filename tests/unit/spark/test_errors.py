"""Whose expression Spark could not compute, as exactly as its message lets us know."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from penstock.errors import ComputationFailed
from penstock.spark.errors import Place, failed, original

DAY = Place("counts", "dimension day", "(to_date(`at timestamp`)\n)")
CODE = {"`code text`": "code"}
NUMBER = Place("counts", "dimension number", "(cast(`code text` as int)\n)", CODE)
FILTER = Place("costs", "the filter", "(cast(`code text` as int) > 1\n)", CODE)
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


@pytest.mark.parametrize("value", ["[SECRET_GMBH]", "a\n[SECRET]\nx: [SECRET] b", "[CAST.SECRET]"])
def test_a_value_that_is_written_as_spark_writes_conditions_is_not_told(value: str) -> None:  # M7.3
    problem = failed(PySparkException(CAST.replace("secret", value)), (NUMBER,)).problem
    assert problem.endswith("failed: CAST_INVALID_INPUT in cast(code as int)")


@pytest.mark.parametrize("underlined", ["secret", ""])
def test_a_value_that_is_written_as_spark_shows_expressions_is_not_told(
    underlined: str,
) -> None:  # M7.3
    value = f"a\n== SQL (line 1) ==\n{underlined}\n^^^^^^\nb"
    said = CAST.replace("secret", value)
    problem = failed(PySparkException(said), (DAY, NUMBER)).problem
    assert problem == (
        "Spark's work for dimension number of aggregate counts failed: CAST_INVALID_INPUT in "
        "cast(code as int)"
    )
    assert "secret" not in failed(PySparkException(said), ()).problem


def test_all_conditions_of_a_message_are_told() -> None:  # M7.3
    said = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [INVALID_PARAMETER_VALUE."
        "ZERO_INDEX] The value '[SECRET]'; [CANNOT_CONVERT_TYPE] [STREAM_FAILED]"
    )
    problem = failed(PySparkException(said), ()).problem
    assert problem.endswith(
        "failed: STREAM_FAILED, INVALID_PARAMETER_VALUE.ZERO_INDEX, CANNOT_CONVERT_TYPE"
    )


def test_what_failed_in_spark_itself_has_its_cause_in_the_error() -> None:  # M7.3
    said = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker exited "
        "unexpectedly (crashed), at the value 'secret'"
    )
    error = failed(PySparkException(said), (DAY,))
    assert error.problem == (
        "Spark's work failed: a Python process of Spark's died, most often because the machine's "
        "memory was short (STREAM_FAILED)"
    )
    assert "SPARK_DRIVER_MEMORY" in error.remedy
    assert error.in_spark_log
    assert not failed(PySparkException(CAST), (DAY,)).in_spark_log


def test_a_computation_that_failed_in_python_is_not_said_to_be_in_sparks_log() -> None:  # M7.3
    raised = ComputationFailed("a text that is not UTF-8", remedy="Decode it")
    assert raised.in_spark_log is False
    again = original(Exception("penstock.errors.ComputationFailed: a text. Decode it"))
    assert isinstance(again, ComputationFailed)
    assert again.in_spark_log is False
