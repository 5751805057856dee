"""What Spark is asked of a declaration, and what is known without it."""

from __future__ import annotations

from unittest.mock import Mock

from pyspark.sql.types import StringType, StructField, StructType

from penstock.pipelines.expressions_checked import _dimension_type
from support.targets import declared


def test_spark_is_not_asked_for_the_type_of_a_column() -> None:  # M5.2
    """It takes a tenth of a second for each, and there may be hundreds."""
    (dimension,) = declared(dimensions={"x": "status"}).dimensions.values()
    frame = Mock(schema=StructType([StructField("status", StringType())]))
    assert _dimension_type(frame, dimension, "here") == StringType()
    frame.selectExpr.assert_not_called()
