"""What an expression does, as Spark has analysed it: a tree of plain `Node`s.

Spark computes nothing for it. `moments`, `zones` and `units` look at such trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession

# From one zone's clock to another's: of a moment and of nothing but zones.
ZONE_CHANGES = ("FromUTCTimestamp", "ToUTCTimestamp", "ConvertTimezone")
# Those, and what makes a moment of numbers; no argument of theirs is a text but a zone.
TAKE_ZONES = (*ZONE_CHANGES, "MakeTimestamp")
# A function that Spark makes of others.
_REPLACEABLE = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"


@dataclass(frozen=True, slots=True)
class Node:
    """A function of Spark's with its arguments, or a column or literal, whose text it is."""

    name: str
    type: str
    of: tuple[Node, ...] = ()
    text: str = ""

    def walk(self) -> Iterator[Node]:
        """Itself and all below it."""
        yield self
        for each in self.of:
            yield from each.walk()


def analysed(spark: SparkSession, tree: Any) -> Node:
    """`tree` is an expression of Spark's Java, in a plan that it has analysed."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - no public way
    if is_instance_of(gateway, tree, _REPLACEABLE):
        tree = tree.replacement()
    children = tree.children()
    name = tree.getClass().getSimpleName()
    return Node(
        name,
        tree.dataType().typeName(),
        tuple(analysed(spark, children.apply(number)) for number in range(children.size())),
        tree.name() if name == "AttributeReference" else tree.toString(),
    )
