"""Has Spark look at the declared expressions before any data comes: unknown functions, types that
do not fit, values that change from one reading to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, BooleanType, MapType, StructField, StructType, VariantType

from penstock.errors import ConfigInvalidValue
from penstock.pipelines.binding import Bound
from penstock.spark.schema import spark_type


def check_expressions(spark: SparkSession, aggregates: Sequence[Bound]) -> None:
    """Raises `ConfigInvalidValue`, which names the aggregate and the dimension."""
    for bound in aggregates:
        fields = [StructField(each.name, spark_type(each.kind)) for each in bound.summed.inputs]
        frame = spark.createDataFrame([], StructType(fields))
        config = bound.config
        wanted = {f"dimension {name}": d.expression for name, d in config.dimensions.items()}
        if config.filter is not None:
            wanted["filter"] = config.filter
        for what, expression in wanted.items():
            place = f"{what} of aggregate {config.name}"
            try:
                result = frame.selectExpr(f"({expression}) AS value")
                kind = result.schema["value"].dataType
                stable = result._jdf.queryExecution().analyzed().deterministic()  # noqa: SLF001 - no public way
            except PySparkException as error:
                said = (error.getMessage() or str(error)).splitlines()[0]
                raise _refused(f"{place}: {said}", "Correct the expression") from None
            if not stable:
                raise _refused(
                    f"{place} gives another value each time it is read",
                    "Use only functions of the row's own values",
                )
            if what == "filter" and not isinstance(kind, BooleanType):
                raise _refused(f"{place} is {kind.simpleString()} and not true or false", "Compare")
            if isinstance(kind, ArrayType | MapType | StructType | VariantType):
                raise _refused(
                    f"{place} is {kind.simpleString()}, which is no single value",
                    "Choose one element, or make text of it",
                )


def _refused(problem: str, remedy: str) -> ConfigInvalidValue:
    return ConfigInvalidValue(problem, remedy=remedy)
