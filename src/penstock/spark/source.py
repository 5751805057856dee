"""`format("penstock")`: Spark's camelCase on the outside, our functions inside.

Spark makes the data source in a Python process of the driver at load(), asks for the schema if its
user gave none, and pickles it. With that copy it makes the readers, later and in other processes.
So it holds nothing open, and keeps what the schema was made from: were it looked up again, the
table might have changed since.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructField, StructType

from penstock.changelog.reader import LogReader
from penstock.decode.changes import Wanted
from penstock.decode.json import WantedTables
from penstock.errors import BadOption, SchemaMismatch
from penstock.spark.errors import said_once
from penstock.spark.options import SourceOptions
from penstock.spark.reading import PenstockReader, PenstockStreamReader
from penstock.spark.schema import decoding_of, schema_of


class PenstockDataSource(DataSource):
    """Reads changes from a change log."""

    # As of load(), if Spark asked for the schema then.
    _loaded: Wanted | WantedTables | None = None

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Everything that can be wrong is found here: an error at load() is clean, and one in
        # streamReader() is not.
        with said_once():
            options = SourceOptions.parse(self.options)
            self._loaded = decoding_of(LogReader(options.path), options)
            return schema_of(self._loaded)

    def reader(self, schema: StructType) -> DataSourceReader:
        with said_once():
            options = SourceOptions.parse(self.options)
            if options.consumer is not None:
                raise BadOption(
                    "a batch is read once and keeps nothing in the log: it has no 'consumer'",
                    remedy="Leave the option out, or use readStream",
                    option="consumer",
                )
            return PenstockReader(options, self._decoding(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with said_once():
            options = SourceOptions.parse(self.options)
            if options.ending != "latest":
                raise BadOption(
                    "a stream has no end, and so no 'endingPosition'",
                    remedy="Leave the option out, or use read",
                    option="endingPosition",
                )
            return PenstockStreamReader(options, self._decoding(options, schema))

    def _decoding(self, options: SourceOptions, schema: StructType) -> Wanted | WantedTables:
        """That of load(), or for a schema that the user gave, if it is the right one."""
        if self._loaded is not None:
            return self._loaded
        decoding = decoding_of(LogReader(options.path), options)
        if (expected := schema_of(decoding)) != schema:
            raise _mismatch(str(options.table or "tables"), expected)
        return decoding


def _declared(field: StructField) -> str:
    """As SQL declares it."""
    not_null = "" if field.nullable else " NOT NULL"
    return f"`{field.name}` {field.dataType.simpleString()}{not_null}"


def _mismatch(table: str, expected: StructType) -> SchemaMismatch:
    return SchemaMismatch(
        f"the schema is not that of {table} in the log",
        remedy=(
            "Give no schema, and choose among its columns with the option columns. The schema is: "
            + ", ".join(map(_declared, expected))
        ),
    )
