"""From a table in the log and the options to Spark's schema, and to what is decoded. Thin."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.changelog.reader import LogReader
from penstock.decode.changes import Wanted
from penstock.decode.definition import Definition
from penstock.decode.json import ROW_COLUMNS, WantedTables
from penstock.decode.metadata import METADATA
from penstock.decode.types import TEXT, Kind, ValueType
from penstock.errors import BadOption, SchemaMismatch
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.spark.options import SourceOptions

_SPARK: dict[Kind, DataType] = {
    Kind.BOOLEAN: BooleanType(),
    Kind.SMALLINT: ShortType(),
    Kind.INTEGER: IntegerType(),
    Kind.BIGINT: LongType(),
    Kind.REAL: FloatType(),
    Kind.DOUBLE: DoubleType(),
    Kind.TEXT: StringType(),
    Kind.BYTES: BinaryType(),
    Kind.DATE: DateType(),
    Kind.TIMESTAMP: TimestampNTZType(),
    Kind.TIMESTAMPTZ: TimestampType(),
}
_METADATA: dict[str, DataType] = {
    "change_type": StringType(),
    "commit_version": LongType(),
    "commit_timestamp": TimestampType(),
    "seq": LongType(),
    "xid": LongType(),
    "unchanged": ArrayType(StringType()),
    "absent": ArrayType(StringType()),
}


def spark_type(kind: ValueType) -> DataType:
    if kind.element is not None:
        return ArrayType(spark_type(kind.element))
    if kind.kind is Kind.DECIMAL:
        return DecimalType(kind.precision, kind.scale)
    return _SPARK[kind.kind]


def single_value_type(kind: DataType) -> ValueType | None:
    """The other way round; None: it is not the type of any one value in the log."""
    if isinstance(kind, DecimalType):
        return ValueType(Kind.DECIMAL, kind.precision, kind.scale)
    if isinstance(kind, ByteType):
        return ValueType(Kind.SMALLINT)
    # A collation makes different texts equal, so it is not the same type.
    return next((ValueType(each) for each, same in _SPARK.items() if same == kind), None)


def decoding_of(reader: LogReader, options: SourceOptions) -> Wanted | WantedTables:
    """What to make of the log, by the options and by what the table is now."""
    if options.table is not None:
        return wanted_of(reader, options, options.table)
    return WantedTables(
        options.tables,
        options.on_truncate,
        "null" if options.on_unrepresentable == "null" else "error",
        options.prefix,
    )


def schema_of(wanted: Wanted | WantedTables) -> StructType:
    """The columns that decoding it gives."""
    if isinstance(wanted, WantedTables):
        fields = [StructField(name, StringType()) for name in ROW_COLUMNS]
        whose = "a row as JSON"
    else:
        fields = [StructField(name, spark_type(kind)) for name, kind in wanted.columns]
        whose = str(wanted.table)
    metadata = [
        StructField(wanted.prefix + name, _METADATA[name], nullable)
        for name, _, nullable in METADATA
    ]
    taken = {field.name.lower() for field in fields}
    for field in metadata:
        if field.name.lower() in taken:
            raise BadOption(
                f"{whose} has a column {field.name} of its own",
                remedy="Set metadataPrefix to something else than "
                f"{wanted.prefix!r}, such as 'penstock_'",
                option="metadataPrefix",
            )
    return StructType(fields + metadata)


def wanted_of(reader: LogReader, options: SourceOptions, table: TableName) -> Wanted:
    """The table's columns as they are now, and what to do with what is special."""
    # First the end: what is described so now was described so, or in an older way, up to there.
    end = reader.end().lsn
    definition, after_lsn = _newest(reader, table)
    known = {
        column.name: kind if kind.total or options.on_unrepresentable != "string" else TEXT
        for column, kind in zip(definition.relation.columns, definition.types, strict=True)
    }
    names = options.columns or tuple(known)
    for name in names:
        if name not in known:
            raise BadOption(
                f"{table} has no column {name}",
                remedy=f"Its columns are: {', '.join(known)}",
                option="columns",
            )
    return Wanted(
        table,
        tuple((name, known[name]) for name in names),
        max(after_lsn, end),
        options.preimages,
        options.on_truncate,
        "error" if options.on_unrepresentable == "string" else options.on_unrepresentable,
        options.prefix,
    )


def _newest(reader: LogReader, table: TableName) -> tuple[Definition, Lsn]:
    """How the table was described last; one that was dropped may have had the same name."""
    found = [
        (entry.after_lsn, definition)
        for entry in reader.tables()
        if (definition := Definition.parse(entry.messages)).table == table
    ]
    if not found:
        raise SchemaMismatch(
            f"the change log in {reader.where} holds no change of {table} yet",
            remedy=(
                "Check that the table is published, and wait for its first change. If it was "
                "renamed, changes from before are under its old name"
            ),
            table=table,
        )
    after_lsn, definition = found[-1]
    return definition, after_lsn
