"""`format("penstock")`: Spark's camelCase on the outside, our functions inside.

Spark makes the data source and its readers in Python processes of the driver, and pickles them to
the executors. So they hold nothing open and no state that matters: whatever is needed is looked up
in the log when it is needed.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.changelog.reader import LogReader
from penstock.decode.changes import Wanted
from penstock.decode.json import WantedTables
from penstock.errors import BadOption, SchemaMismatch
from penstock.spark.errors import said_once
from penstock.spark.options import SourceOptions
from penstock.spark.reading import PenstockReader, PenstockStreamReader
from penstock.spark.schema import schema_of, wanted_of


class PenstockDataSource(DataSource):
    """Reads changes from a change log."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Everything that can be wrong is found here: an error at load() is clean, and one in
        # streamReader() is not.
        with said_once():
            options = SourceOptions.parse(self.options)
            return schema_of(LogReader(options.path), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        with said_once():
            options = SourceOptions.parse(self.options)
            if options.consumer is not None:
                raise BadOption(
                    "a batch is read once and keeps nothing in the log: it has no 'consumer'",
                    remedy="Leave the option out, or use readStream",
                    option="consumer",
                )
            return PenstockReader(options, _decoding(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with said_once():
            options = SourceOptions.parse(self.options)
            if options.ending != "latest":
                raise BadOption(
                    "a stream has no end, and so no 'endingPosition'",
                    remedy="Leave the option out, or use read",
                    option="endingPosition",
                )
            return PenstockStreamReader(options, _decoding(options, schema))


def _decoding(options: SourceOptions, schema: StructType) -> Wanted | WantedTables:
    log = LogReader(options.path)
    expected = schema_of(log, options)
    if options.table is None:
        return WantedTables(
            options.tables,
            options.on_truncate,
            "null" if options.on_unrepresentable == "null" else "error",
            options.prefix,
        )
    if schema != expected:
        raise SchemaMismatch(
            f"the schema is not that of {options.table} in the log",
            remedy=(
                "Give no schema, or choose among its columns with the option columns: "
                f"{expected.simpleString()}"
            ),
        )
    return wanted_of(log, options, options.table)
