"""Which moments expressions read to the minute and no finer, such as for the local day.

Rows that differ in nothing but seconds are then equal, and are added up where they are read: Spark
computes the day once for all of them. Spark itself says what an expression does; what is not known
here reads its columns exactly.

Whether that changes no value rests on `EXACT_BEFORE`, and on Java's rules of time zones, which a
test looks at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from penstock.decode.deltas import Input
from penstock.decode.types import Kind
from penstock.expressions import in_brackets
from penstock.pipelines.analysed import ZONE_CHANGES, Node, analysed
from penstock.pipelines.binding import Bound
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.units import OF_MINUTES
from penstock.spark.schema import spark_type

_MOMENTS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_SPARK_MOMENTS = ("timestamp", "timestamp_ntz")
# What Spark's functions of moments are made of, if not of a cast to a date.
_OF_THE_MINUTE = ("Hour", "Minute", "IsNull", "IsNotNull")
# Of the tz database. Offsets such as +01:02:03 or UTC+010203 may have seconds.
_ZONE = re.compile(r"[A-Za-z_]+(/[A-Za-z0-9_+-]+)+|UTC")


def by_minute(bound: Bound, spark: SparkSession) -> Bound:
    """The same aggregate, in which such moments are read by the minute.

    Spark can compute its expressions: somebody has checked.
    """
    config, summed = bound.config, bound.summed
    moments = {each.name for each in summed.keys if each.kind.kind in _MOMENTS}
    # A dimension that is a column is read exactly; Spark need not be asked.
    plain = {each.plain for each in config.dimensions.values()}
    texts = [each.expression for each in config.dimensions.values() if each.plain is None]
    texts += [config.filter] if config.filter else []
    if not moments - plain:
        return bound
    fields = [StructField(each.name, spark_type(each.kind)) for each in summed.inputs]
    frame = with_meaning(spark).createDataFrame([], StructType(fields))
    selected = frame.selectExpr(*(f"{in_brackets(text)} AS value" for text in texts))
    plan = selected._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way
    if plan.children().apply(0).children().size():
        return bound  # something is computed before
    found = plan.expressions()
    trees = [analysed(spark, found.apply(number)) for number in range(found.size())]
    coarse = (moments & _columns(trees)) - set(exactly(trees)) - plain

    def coarsened(each: Input) -> Input:
        return replace(each, by_minute=each.name in coarse)

    return replace(bound, summed=replace(summed, keys=tuple(map(coarsened, summed.keys))))


def _columns(trees: Iterable[Node]) -> set[str]:
    return {
        node.text for tree in trees for node in tree.walk() if node.name == "AttributeReference"
    }


def exactly(trees: Iterable[Node]) -> Iterator[str]:
    """The columns of which more than the minute of a moment is read."""
    for tree in trees:
        if tree.name == "AttributeReference":
            yield tree.text
        elif _takes_minutes(tree):
            yield from _not_by_minute(tree.of)
        else:
            yield from exactly(tree.of)


def _takes_minutes(node: Node) -> bool:
    """Its value is the same for all moments of a minute."""
    match node:
        case Node("Cast", "date"):
            return True
        case Node("TruncTimestamp", _, (Node("Literal", _, _, unit), _)):
            return unit.upper() in OF_MINUTES
    return node.name in _OF_THE_MINUTE


def _not_by_minute(arguments: Iterable[Node]) -> Iterator[str]:
    """As `exactly`, of arguments of which only the minute matters."""
    for each in arguments:
        if each.type not in _SPARK_MOMENTS:
            yield from exactly([each])
        elif each.name == "AttributeReference":
            continue
        elif _keeps_minutes(each):
            yield from _not_by_minute(each.of)
        else:
            yield from exactly([each])


def _keeps_minutes(node: Node) -> bool:
    """The minute of its value depends on nothing but the minutes of its arguments."""
    if node.name in ZONE_CHANGES:
        zones = [each for each in node.of if each.type not in _SPARK_MOMENTS]
        return all(zone.name == "Literal" and _ZONE.fullmatch(zone.text) for zone in zones)
    return node.name in ("Cast", "Coalesce")
