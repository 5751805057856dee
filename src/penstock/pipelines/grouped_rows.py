"""Rows of a table by dimensions: Spark computes the expressions, the rest is done here.

`grouping.py` has Spark do all of it, for what comes from the log and for all aggregates at once.
Here it is one aggregate and many rows, so Spark gets as little as possible: the columns that an
expression reads, and each combination of their values once.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, StructField, StructType

from penstock.decode.deltas import WantedDeltas, added_up
from penstock.pipelines.binding import Bound
from penstock.pipelines.grouping import dimension_text, key_name, measures_of, over, places
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.numbered_rows import (
    HANDED_ON,
    SEEN,
    Division,
    NumberedRows,
    renumbered,
)
from penstock.pipelines.numbering import combinations
from penstock.pipelines.sums import as_text
from penstock.spark.deltas import delta_schema
from penstock.spark.errors import computing

# Which combination of what Spark is given.
_NUMBER = "_number"


def grouped_rows(
    spark: SparkSession, bound: Bound, parts: Division, portion: NumberedRows
) -> pa.Table:
    """From what rows add, by the columns, to dimensions and measures."""
    numbers, values = combinations(portion.seen)
    computed = _computed(spark, bound, parts, values)
    # Where in that each row is; nowhere, if it does not pass the filter.
    place = np.full(len(values), -1)
    place[np.asarray(computed[_NUMBER])] = np.arange(len(computed))
    rows, place = portion.rows, place[numbers][np.asarray(portion.rows[SEEN])]
    passes = place >= 0
    if not passes.all():
        rows, place = rows.filter(pa.array(passes)), place[passes]
    which, meanings = combinations(computed.drop_columns(_NUMBER))
    handed_which, meant = combinations(portion.handed_on)
    sums = added_up(
        renumbered(rows, which[place], handed_which[np.asarray(rows[HANDED_ON])]),
        [SEEN, HANDED_ON],
        parts.sums,
    )
    found = {
        name: as_text(meant[parts.handed_on[name].key]).take(sums[HANDED_ON])
        if name in parts.handed_on
        else meanings[key_name(0, number)].take(sums[SEEN])
        for number, name in enumerate(bound.config.dimensions)
    }
    return pa.table(found | measures_of(sums, bound))


def _computed(spark: SparkSession, bound: Bound, parts: Division, values: pa.Table) -> pa.Table:
    """The other dimensions as text, of the combinations that pass the filter, by their number."""
    config = bound.config
    known = delta_schema(WantedDeltas((bound.summed,)))
    number = StructField(_NUMBER, IntegerType(), nullable=False)
    # Said and not guessed: a moment without a time zone would become one of the session's.
    schema = StructType([number, *(known[each.key] for each in parts.seen)])
    given = pa.table(
        {
            _NUMBER: pa.array(np.arange(len(values)), pa.int32()),
            **{each.key: values[each.key] for each in parts.seen},
        }
    )
    expressions = {
        key_name(0, number): over(bound, dimension.expression)
        for number, (name, dimension) in enumerate(config.dimensions.items())
        if name not in parts.handed_on
    }
    with computing(places([bound])):
        frame = with_meaning(spark).createDataFrame(given.combine_chunks(), schema)
        if config.filter:
            frame = frame.where(f.expr(over(bound, config.filter)))
        result = frame.select(
            _NUMBER, *(f.expr(text).alias(name) for name, text in expressions.items())
        ).toArrow()
    dimensions = {
        key: dimension_text(bound, name, _one_zero(result[key]))
        for number, name in enumerate(config.dimensions)
        if (key := key_name(0, number)) in expressions
    }
    return pa.table({_NUMBER: result[_NUMBER], **dimensions})


def _one_zero(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """As Spark groups: -0 is 0."""
    return pc.add(values, 0) if pa.types.is_floating(values.type) else values
