"""What Spark computes of rows of a table: expressions, and sums by them.

`grouping.py` does it for what comes from the log, for all aggregates at once. Here it is one
aggregate and many rows, so Spark gets as little as possible of each: the columns that an expression
reads, and one number for those that it would only hand on.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructField, StructType

from penstock.decode.deltas import ROWS, Input, WantedDeltas, sum_name
from penstock.decode.types import Kind
from penstock.expressions import columns_of, quoted
from penstock.pipelines.binding import Bound
from penstock.pipelines.carried import numbered
from penstock.pipelines.grouping import key_name, measures_of, over, places
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.sums import as_text
from penstock.spark.deltas import delta_schema
from penstock.spark.errors import computing

# No column of the source has such a name, for theirs end with a type.
_NUMBER = "_number"
# Spark takes -0 for 0, and Arrow does not.
_FLOATS = (Kind.REAL, Kind.DOUBLE)


def grouped_rows(spark: SparkSession, bound: Bound, rows: pa.Table) -> pa.Table:
    """From what rows add, by the columns, to dimensions and measures."""
    handed_on = _handed_on(bound)
    meanings = pa.table({})
    if handed_on:
        columns = {each.key: rows[each.key].combine_chunks() for each in handed_on.values()}
        numbers, meanings = numbered(columns)
        rows = rows.append_column(_NUMBER, numbers)
    # Said and not guessed: a moment without a time zone would become one of the session's.
    schema = _schema(bound, handed_on, each_counts=pc.all(pc.equal(rows[ROWS], 1)).as_py())
    with computing(places([bound])):
        frame = spark.createDataFrame(rows.select(schema.names).combine_chunks(), schema)
        result = _grouped(frame, bound, handed_on).toArrow()
    dimensions = {
        name: as_text(meanings[handed_on[name].key]).take(result[_NUMBER])
        if name in handed_on
        else as_text(result[key_name(0, number)])
        for number, name in enumerate(bound.config.dimensions)
    }
    return pa.table(dimensions | measures_of(result, bound))


def _handed_on(bound: Bound) -> dict[str, Input]:
    """By dimension: those that are nothing but a column."""
    inputs = {each.name: each for each in bound.summed.keys}
    plain = {
        name: inputs[each.plain] for name, each in bound.config.dimensions.items() if each.plain
    }
    return {name: each for name, each in plain.items() if each.kind.kind not in _FLOATS}


def _schema(bound: Bound, handed_on: Mapping[str, Input], *, each_counts: bool) -> StructType:
    """What Spark is given; how much a row counts only if it is not 1."""
    config = bound.config
    seen = set(columns_of(config.filter) if config.filter else ())
    for name, dimension in config.dimensions.items():
        seen |= set() if name in handed_on else set(dimension.columns)
    names = [
        *(each.key for each in bound.summed.keys if each.name in seen),
        *map(sum_name, bound.summed.sums),
        *(() if each_counts else (ROWS,)),
    ]
    known = delta_schema(WantedDeltas((bound.summed,)))
    number = [StructField(_NUMBER, IntegerType(), nullable=False)] if handed_on else []
    return StructType([*number, *(known[name] for name in names)])


def _grouped(frame: DataFrame, bound: Bound, handed_on: Mapping[str, Input]) -> DataFrame:
    with_meaning(frame.sparkSession)
    config = bound.config
    if config.filter:
        frame = frame.where(f.expr(over(bound, config.filter)))
    computed = {
        key_name(0, number): over(bound, dimension.expression)
        for number, (name, dimension) in enumerate(config.dimensions.items())
        if name not in handed_on
    }
    number = [_NUMBER] if handed_on else []
    added = [name for name in (ROWS, *map(sum_name, bound.summed.sums)) if name in frame.columns]
    rows = frame.select(
        *number,
        *map(quoted, added),
        *(f.expr(expression).alias(name) for name, expression in computed.items()),
    )
    sums = [f.sum(quoted(name)).alias(name) for name in added]
    if ROWS not in added:
        sums.append(f.count("*").alias(ROWS))
    return rows.groupBy(*number, *map(quoted, computed)).agg(*sums)
