"""Registers the source with Spark, which imports every top-level `pyspark_*` package it finds.

A failure here would hide all sources on the path, so only what Spark itself brings is imported: the
rest is when the source is used.
"""

from __future__ import annotations

from functools import cached_property

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """`penstock.spark.source.PenstockDataSource`, by its name."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType | str:
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self._source.streamReader(schema)

    @cached_property
    def _source(self) -> DataSource:
        from penstock.spark.source import PenstockDataSource

        return PenstockDataSource(self.options)


__all__ = ["DefaultSource"]
