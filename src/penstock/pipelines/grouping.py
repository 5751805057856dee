"""What Spark computes: from deltas of equal rows to sums by dimensions, for all aggregates at once.

One scan, one grouping: each row says which aggregate it is for, and the dimensions of the others
are NULL in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.changelog.runs import BatchRange
from penstock.declarations import AggregateConfig
from penstock.decode.deltas import AGGREGATE, COUNTED, NO_AGGREGATE, NOTE, ROWS, STOPPED, sum_name
from penstock.decode.stops import Stop
from penstock.errors import ComputationFailed
from penstock.expressions import in_brackets, quoted, renamed
from penstock.lsn import Lsn
from penstock.pipelines.applying import Batch
from penstock.pipelines.binding import Bound
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.sums import as_text
from penstock.spark.errors import Place

# Before the names of dimensions; no column of the source has such a one, for theirs have a blank.
_KEY = "_key_"


def computed(deltas: DataFrame, aggregates: Sequence[Bound]) -> DataFrame:
    """The dimensions of each row that counts; notes as they are."""
    with_meaning(deltas.sparkSession)
    keys = {
        key_name(ordinal, number): _dimension(bound, ordinal, dimension.expression)
        for ordinal, bound in enumerate(aggregates)
        for number, dimension in enumerate(bound.config.dimensions.values())
    }
    return deltas.where(f.expr(_filter(aggregates))).select(
        AGGREGATE,
        NOTE,
        ROWS,
        *map(quoted, _sums(aggregates)),
        *(f.expr(expression).alias(name) for name, expression in keys.items()),
    )


def grouped(rows: DataFrame, aggregates: Sequence[Bound]) -> DataFrame:
    """A row for each combination of dimensions: whoever gets them adds up anyhow, but may get
    many.
    """
    keys = [name for name in rows.columns if name.startswith(_KEY)]
    return rows.groupBy(AGGREGATE, NOTE, *keys).agg(
        f.sum(ROWS).alias(ROWS), *(f.sum(quoted(name)).alias(name) for name in _sums(aggregates))
    )


def _sums(aggregates: Sequence[Bound]) -> list[str]:
    names = (sum_name(each) for bound in aggregates for each in bound.summed.sums)
    return list(dict.fromkeys(names))


def batches(result: pa.Table, aggregates: Sequence[Bound]) -> list[Batch]:
    """What was computed, by aggregate."""
    return [batch_of(result, bound, ordinal) for ordinal, bound in enumerate(aggregates)]


def plain_batches(deltas: pa.Table, aggregates: Sequence[Bound]) -> list[Batch]:
    """As `batches`, of deltas that nobody has grouped, where all dimensions are columns."""
    for ordinal, bound in enumerate(aggregates):
        keys = {each.name: each.key for each in bound.summed.keys}
        for number, dimension in enumerate(bound.config.dimensions.values()):
            deltas = deltas.append_column(
                key_name(ordinal, number), deltas[keys[str(dimension.plain)]]
            )
    return batches(deltas, aggregates)


def covered_by(result: pa.Table) -> BatchRange:
    """From the note that says so."""
    (note,) = result.filter(pc.equal(result[AGGREGATE], NO_AGGREGATE))[NOTE].to_pylist()
    return BatchRange(*map(Lsn.parse, note.split()))


def batch_of(result: pa.Table, bound: Bound, ordinal: int) -> Batch:
    """What was computed for one aggregate."""
    ours = result.filter(pc.equal(result[AGGREGATE], ordinal))
    is_note = pc.is_valid(ours[NOTE])
    noted = ours.filter(is_note)
    notes: Counter[str] = Counter()
    stops = []
    for note, count in zip(noted[NOTE].to_pylist(), noted[ROWS].to_pylist(), strict=True):
        if note.startswith(STOPPED):
            stops.append(Stop.from_json(note.removeprefix(STOPPED)))
        else:
            notes[note] += count
    if stops:
        return Batch(_no_sums(bound.config), stop=min(stops, key=lambda stop: stop.order))
    changes = notes.pop(COUNTED, 0)
    rows = ours.filter(pc.invert(is_note))
    dimensions = {
        name: dimension_text(bound, name, rows[key_name(ordinal, number)])
        for number, name in enumerate(bound.config.dimensions)
    }
    return Batch(pa.table(dimensions | measures_of(rows, bound)), changes, notes)


def _no_sums(config: AggregateConfig) -> pa.Table:
    """What leads up to a stop is not applied, and need not be read."""
    dimensions = {name: pa.array([], pa.string()) for name in config.dimensions}
    return pa.table(dimensions | {name: pa.array([], pa.int64()) for name in config.measures})


def dimension_text(bound: Bound, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Of what Spark gave: it makes a text of any bytes, and does not look at them."""
    texts = as_text(values)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raise ComputationFailed(
            f"dimension {name} of aggregate {bound.config.name} gives a text that is not UTF-8",
            remedy="Say in its expression what the bytes mean, as decode(data, 'ISO-8859-1') does, "
            "or show them, as hex(data) does",
        ) from None
    return texts


def measures_of(rows: pa.Table, bound: Bound) -> dict[str, pa.ChunkedArray]:
    """From the sums of columns."""
    inputs = {each.name: each for each in bound.summed.sums}
    measures = {}
    for name in bound.config.measures:
        column = bound.config.summed_by(name)
        # A group of nothing but NULLs adds nothing.
        measures[name] = pc.fill_null(rows[ROWS if column is None else sum_name(inputs[column])], 0)
    return measures


def key_name(ordinal: int, number: int) -> str:
    """Of a dimension in Spark: their own names may differ in nothing but capitals."""
    return f"{_KEY}{ordinal}_{number}"


def _dimension(bound: Bound, ordinal: int, expression: str) -> str:
    return (
        f"CASE WHEN {AGGREGATE} = {ordinal} AND {NOTE} IS NULL THEN {over(bound, expression)} END"
    )


def _filter(aggregates: Sequence[Bound]) -> str:
    cases = [
        f"WHEN {AGGREGATE} = {ordinal} THEN {over(bound, bound.config.filter)}"
        for ordinal, bound in enumerate(aggregates)
        if bound.config.filter
    ]
    return f"CASE WHEN {NOTE} IS NOT NULL THEN true {' '.join(cases)} ELSE true END"


def places(aggregates: Sequence[Bound]) -> list[Place]:
    """What Spark computes, for errors to name it."""
    return [
        Place(bound.config.name, part, over(bound, expression), _as_declared(bound))
        for bound in aggregates
        for part, expression in _parts(bound.config)
    ]


def _as_declared(bound: Bound) -> dict[str, str]:
    """The columns in `over`, and what they are called in the declaration."""
    return {
        quoted(each.key): each.name if each.name.isidentifier() else quoted(each.name)
        for each in bound.summed.keys
    }


def _parts(config: AggregateConfig) -> Iterator[tuple[str, str]]:
    if config.filter is not None:
        yield "the filter", config.filter
    for name, dimension in config.dimensions.items():
        if dimension.plain is None:
            yield f"dimension {name}", dimension.expression


def over(bound: Bound, expression: str) -> str:
    """In brackets, over the columns as the source names them."""
    return in_brackets(renamed(expression, {each.name: each.key for each in bound.summed.keys}))
