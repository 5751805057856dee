"""`format("penstock-deltas")`: what the log adds to aggregates, summed up where it is read.

For Penstock's own pipelines, which register it; people read changes with `format("penstock")`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from penstock.decode.deltas import (
    AGGREGATE,
    NOTE,
    ROWS,
    WantedDeltas,
    sum_name,
    sum_type,
)
from penstock.decode.types import ValueType
from penstock.spark.errors import said_once
from penstock.spark.late import LateStreamReader
from penstock.spark.options import SourceOptions
from penstock.spark.reading import PenstockReader
from penstock.spark.schema import spark_type

_WANTED = TypeAdapter(WantedDeltas)


class PenstockDeltas(DataSource):
    """The option `wanted` says which aggregates; the others are those of `penstock`."""

    @classmethod
    def name(cls) -> str:
        return "penstock-deltas"

    def schema(self) -> StructType:
        return delta_schema(self._wanted)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark gives it
        with said_once():
            return PenstockReader(self._options, self._wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - the same
        with said_once():
            return LateStreamReader(self._options, self._wanted)

    @property
    def _wanted(self) -> WantedDeltas:
        return _WANTED.validate_json(self.options["wanted"])

    @property
    def _options(self) -> SourceOptions:
        others: Mapping[str, str] = self.options
        given = {name: value for name, value in others.items() if name.lower() != "wanted"}
        return SourceOptions.parse({**given, "tables": "*"})


def as_option(wanted: WantedDeltas) -> str:
    return _WANTED.dump_json(wanted).decode()


def delta_schema(wanted: WantedDeltas) -> StructType:
    """As `decode.deltas.delta_schema`, in Spark's types."""
    keys = {each.key: spark_type(each.kind) for one in wanted.aggregates for each in one.keys}
    sums = {sum_name(each): _sum_type(each.kind) for one in wanted.aggregates for each in one.sums}
    return StructType(
        [
            StructField(AGGREGATE, IntegerType(), nullable=False),
            StructField(ROWS, LongType(), nullable=False),
            StructField(NOTE, StringType()),
            *(StructField(name, kind) for name, kind in (keys | sums).items()),
        ]
    )


def _sum_type(kind: ValueType) -> DataType:
    arrow = sum_type(kind)
    is_decimal = pa.types.is_decimal(arrow)
    return DecimalType(arrow.precision, arrow.scale) if is_decimal else LongType()
