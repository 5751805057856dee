"""Time zones that an expression names: Spark looks at them only when it computes a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_TAKE_ZONES = ("FromUTCTimestamp", "ToUTCTimestamp", "ConvertTimezone")


def unknown_zones(spark: SparkSession, tree: Any) -> list[str]:
    """Those written out in an expression that Spark does not know. `tree` is the expression as
    Spark has analyzed it.
    """
    times = spark._jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils  # type: ignore[union-attr]  # noqa: SLF001 - no public way
    unknown = []
    for zone in _zones(tree):
        try:
            times.getZoneId(zone)
        except PySparkException:
            unknown.append(zone)
    return unknown


def _zones(tree: Any) -> Iterator[str]:
    children = tree.children()
    takes_zones = tree.getClass().getSimpleName() in _TAKE_ZONES
    for number in range(children.size()):
        child = children.apply(number)
        if takes_zones and _is_text(child) and child.value() is not None:
            yield child.value().toString()
        yield from _zones(child)


def _is_text(tree: Any) -> bool:
    return bool(
        tree.getClass().getSimpleName() == "Literal" and tree.dataType().typeName() == "string"
    )
