"""Time zones that an expression names: Spark looks at them only when it computes a row."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.pipelines.analysed import TAKE_ZONES, Node


def unknown_zones(spark: SparkSession, tree: Node) -> list[str]:
    """Those written out in an expression that Spark does not know."""
    times = spark._jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils  # type: ignore[union-attr]  # noqa: SLF001 - no public way
    unknown = []
    for zone in zones(tree):
        try:
            times.getZoneId(zone)
        except PySparkException:
            unknown.append(zone)
    return unknown


def zones(tree: Node) -> Iterator[str]:
    """Those written out."""
    for node in tree.walk():
        for argument in node.of if node.name in TAKE_ZONES else ():
            match argument:
                case Node("Literal", "string", _, zone) | Node(
                    "Collate", _, (Node("Literal", "string", _, zone), *_)
                ):
                    yield zone
