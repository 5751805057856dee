"""`spark.readStream.format("penstock")`: Spark's camelCase on the outside, our functions inside.

Options: `path`, the directory of the change log, and `table`. The columns are the table's, as text,
then `_change_type`, `_commit_version` and `_seq`.

Spark makes the data source in the driver's Python workers and pickles the reader to the executors,
so neither holds anything open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.changelog.reader import LogReader, Position
from penstock.errors import BadOption, SchemaMismatch
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.spark.rows import METADATA, columns_of, rows_of

_OPTIONS = ("path", "table")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one `load()`, checked."""

    path: Path
    table: TableName

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        valid = f"The options are: {', '.join(_OPTIONS)}"
        for name in given:
            if name.lower() not in _OPTIONS:
                raise BadOption(f"unknown option {name!r}", remedy=valid, option=name)
        for name in _OPTIONS:
            if not given.get(name):
                raise BadOption(f"option {name!r} is missing", remedy=valid, option=name)
        try:
            table = TableName.parse(given["table"])
        except ValueError as error:
            raise BadOption(f"option 'table': {error}", remedy=valid, option="table") from None
        return cls(Path(given["path"]), table)


class PenstockDataSource(DataSource):
    """Reads one table's changes from a change log."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Everything that can be wrong is found here: an error at load() is clean, and one in
        # streamReader() is not.
        options = SourceOptions.parse(self.options)
        log = LogReader(options.path)
        columns = columns_of(log.transactions(log.start(), log.end()), options.table)
        if columns is None:
            raise SchemaMismatch(
                f"the log in {options.path} holds no change of {options.table} yet",
                remedy="Check that the table is published, and wait for its first change",
            )
        fields = [StructField(column, StringType()) for column in columns]
        types = (StringType(), LongType(), LongType())
        fields += [
            StructField(name, kind, nullable=False)
            for name, kind in zip(METADATA, types, strict=True)
        ]
        return StructType(fields)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PenstockStreamReader(SourceOptions.parse(self.options), schema)


@dataclass
class _Range(InputPartition):
    """What one task reads: all of it travels to the executor."""

    after: Position
    up_to: Position


class PenstockStreamReader(DataSourceStreamReader):
    """Offsets are positions of the log: `{"lsn": …, "segment": …, "byte_pos": …}`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = tuple(name for name in schema.names if name not in METADATA)

    def initialOffset(self) -> dict[str, Any]:
        return _offset(LogReader(self._options.path).start())

    def latestOffset(
        self,
        start: dict[str, Any],  # noqa: ARG002 - Spark's signature
        limit: ReadLimit,  # noqa: ARG002
    ) -> dict[str, Any]:
        return _offset(LogReader(self._options.path).end())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Range(_position(start), _position(end))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _Range)  # noqa: S101 - ours, from partitions()
        log = LogReader(self._options.path)
        for transaction in log.transactions(partition.after, partition.up_to):
            yield from rows_of(transaction, self._options.table, self._columns)


def _offset(position: Position) -> dict[str, Any]:
    return {
        "lsn": int(position.lsn),
        "segment": position.segment,
        "byte_pos": position.byte_pos,
    }


def _position(offset: Mapping[str, Any]) -> Position:
    return Position(Lsn(offset["lsn"]), offset["segment"], offset["byte_pos"])
