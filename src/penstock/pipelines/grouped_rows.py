"""Rows of a table by dimensions: Spark computes the expressions, the rest is done here.

`grouping.py` has Spark do all of it, for what comes from the log and for all aggregates at once.
Here it is one aggregate and many rows, so Spark gets as little as possible: the columns that an
expression reads, and each combination of their values once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructField, StructType

from penstock.decode.deltas import ROWS, Input, WantedDeltas, added_up, sum_name
from penstock.decode.types import Kind
from penstock.expressions import columns_of
from penstock.pipelines.binding import Bound
from penstock.pipelines.grouping import key_name, measures_of, over, places
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.numbering import numbered
from penstock.pipelines.sums import as_text
from penstock.spark.deltas import delta_schema
from penstock.spark.errors import computing

# Which combination of what Spark is given, of what it gives, and of what is only handed on. No
# column of the source has such a name, for theirs have a blank.
_NUMBER, _COMPUTED, _HANDED_ON = "_number", "_computed", "_handed_on"
# Spark takes -0 for 0, and Arrow does not.
_FLOATS = (Kind.REAL, Kind.DOUBLE)


def grouped_rows(spark: SparkSession, bound: Bound, rows: pa.Table) -> pa.Table:
    """From what rows add, by the columns, to dimensions and measures."""
    handed_on = _handed_on(bound)
    seen = _seen_by_spark(bound, handed_on)
    numbers, values = _combinations(rows, [each.key for each in seen])
    computed = _computed(spark, bound, seen, values, handed_on)
    # Where in that each row is; nowhere, if it does not pass the filter.
    place = np.full(len(values), -1)
    place[np.asarray(computed[_NUMBER])] = np.arange(len(computed))
    place = place[numbers]
    passes = place >= 0
    if not passes.all():
        rows, place = rows.filter(pa.array(passes)), place[passes]
    dimensions = [name for name in computed.column_names if name != _NUMBER]
    which, meanings = _combinations(computed, dimensions)
    handed, meant = _combinations(rows, [each.key for each in handed_on.values()])
    added = [ROWS, *map(sum_name, bound.summed.sums)]
    sums = added_up(
        rows.select(added)
        .append_column(_COMPUTED, pa.array(which[place]))
        .append_column(_HANDED_ON, pa.array(handed)),
        [_COMPUTED, _HANDED_ON],
        bound.summed.sums,
    )
    found = {
        name: as_text(meant[handed_on[name].key]).take(sums[_HANDED_ON])
        if name in handed_on
        else meanings[key_name(0, number)].take(sums[_COMPUTED])
        for number, name in enumerate(bound.config.dimensions)
    }
    return pa.table(found | measures_of(sums, bound))


def _handed_on(bound: Bound) -> dict[str, Input]:
    """By dimension: those that are nothing but a column."""
    inputs = {each.name: each for each in bound.summed.keys}
    plain = {
        name: inputs[each.plain] for name, each in bound.config.dimensions.items() if each.plain
    }
    return {name: each for name, each in plain.items() if each.kind.kind not in _FLOATS}


def _seen_by_spark(bound: Bound, handed_on: dict[str, Input]) -> list[Input]:
    config = bound.config
    names = set(columns_of(config.filter) if config.filter else ())
    for name, dimension in config.dimensions.items():
        names |= set() if name in handed_on else set(dimension.columns)
    return [each for each in bound.summed.keys if each.name in names]


def _combinations(rows: pa.Table, names: Sequence[str]) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """Which one each row has, and what they are; without a column all have the same."""
    columns = {name: rows[name].combine_chunks() for name in names}
    if not columns:
        return np.zeros(len(rows), np.int64), pa.table({_NUMBER: [0]})
    if any(pa.types.is_nested(array.type) for array in columns.values()):
        return np.arange(len(rows)), pa.table(columns)  # Arrow cannot tell which are equal
    numbers, meanings = numbered(columns)
    return np.asarray(numbers, np.int64), meanings


def _computed(
    spark: SparkSession,
    bound: Bound,
    seen: Sequence[Input],
    values: pa.Table,
    handed_on: dict[str, Input],
) -> pa.Table:
    """The other dimensions as text, of the combinations that pass the filter, by their number."""
    config = bound.config
    known = delta_schema(WantedDeltas((bound.summed,)))
    number = StructField(_NUMBER, IntegerType(), nullable=False)
    # Said and not guessed: a moment without a time zone would become one of the session's.
    schema = StructType([number, *(known[each.key] for each in seen)])
    given = pa.table(
        {
            _NUMBER: pa.array(np.arange(len(values)), pa.int32()),
            **{each.key: values[each.key] for each in seen},
        }
    )
    expressions = {
        key_name(0, number): over(bound, dimension.expression)
        for number, (name, dimension) in enumerate(config.dimensions.items())
        if name not in handed_on
    }
    with computing(places([bound])):
        frame = with_meaning(spark).createDataFrame(given.combine_chunks(), schema)
        if config.filter:
            frame = frame.where(f.expr(over(bound, config.filter)))
        result = frame.select(
            _NUMBER, *(f.expr(text).alias(name) for name, text in expressions.items())
        ).toArrow()
    dimensions = {name: as_text(_one_zero(result[name])) for name in expressions}
    return pa.table({_NUMBER: result[_NUMBER], **dimensions})


def _one_zero(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """As Spark groups: -0 is 0."""
    return pc.add(values, 0) if pa.types.is_floating(values.type) else values
