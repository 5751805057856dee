"""Has Spark look at the declared expressions before any data comes: unknown functions, types that
do not fit, values that change from one reading to the next, time zones that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DataType, NullType, StructField, StructType

from penstock.declarations import Dimension
from penstock.errors import ConfigInvalidValue, PenstockError, TargetMismatch
from penstock.expressions import in_brackets
from penstock.names import TableName
from penstock.pipelines.analysed import analysed
from penstock.pipelines.binding import Bound
from penstock.pipelines.meaning import with_meaning
from penstock.pipelines.passing import passes
from penstock.pipelines.target_facts import TargetFacts, check_target_version, read_target_tables
from penstock.pipelines.target_types import keeps_expression
from penstock.pipelines.targets import targets_of
from penstock.pipelines.units import unknown_units
from penstock.pipelines.zones import unknown_zones
from penstock.postgres.connect import connect
from penstock.postgres.failures import translated
from penstock.sections import Dsn
from penstock.spark.schema import single_value_type, spark_type

# A text that is compared with a time is made one too.
_PRESENT = re.compile(
    r"\b(?:cast|to_date|to_timestamp\w*)\(\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE
)


def require_computable(
    spark: SparkSession, aggregates: Sequence[Bound], default: Dsn | None = None
) -> None:
    """Raises the first error, which names the aggregate and the dimension.

    `default` is where targets are, if an aggregate does not say; without it, and while they are
    away, they are not looked at.
    """
    for bound in aggregates:
        tables: Mapping[TableName, TargetFacts] = {}
        if default is not None:
            names = [target.table for target in targets_of(bound.config)]
            try:
                with connect(bound.config.conninfo(default)) as connection:
                    check_target_version(connection.info.server_version)
                    with translated("read the target's catalog"):
                        tables = read_target_tables(connection, names)
            except PenstockError as away:
                if not passes(away):
                    raise
        for error in expression_errors(spark, bound, tables):
            raise error


def expression_errors(
    spark: SparkSession, bound: Bound, tables: Mapping[TableName, TargetFacts]
) -> Iterator[PenstockError]:
    """All that is wrong; `tables` are the targets, as far as they are there."""
    config = bound.config
    fields = [StructField(each.name, spark_type(each.kind)) for each in bound.summed.inputs]
    frame = with_meaning(spark).createDataFrame([], StructType(fields))
    if config.filter is not None:
        place = f"filter of aggregate {config.name}"
        try:
            kind = _type(frame, config.filter, place)
        except PenstockError as error:
            yield error
        else:
            if not isinstance(kind, BooleanType):
                problem = f"{place} is {kind.simpleString()} and not true or false"
                remedy = (
                    "Write a condition: compare the value with another one, such as status = "
                    "'failed' or price > 0, or ask whether there is one: status IS NOT NULL"
                )
                yield ConfigInvalidValue(problem, remedy=remedy)
    for name, dimension in config.dimensions.items():
        try:
            kind = _dimension_type(frame, dimension, f"dimension {name} of {_of(bound)}")
        except PenstockError as error:
            yield error
        else:
            if dimension.plain is None:
                yield from _unfit(bound, name, kind, tables)


def _of(bound: Bound) -> str:
    return f"aggregate {bound.config.name}"


def _type(frame: DataFrame, expression: str, place: str) -> DataType:
    try:
        # Not at the top, where Spark allows more.
        result = frame.selectExpr(f"CASE WHEN true THEN {in_brackets(expression)} END AS value")
        kind = result.schema["value"].dataType
        plan = result._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way
        patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]  # noqa: SLF001
        of_one_row = plan.nodeName() == "Project" and not plan.containsPattern(
            patterns.PLAN_EXPRESSION()
        )
        stable = (
            plan.deterministic()
            and not plan.containsPattern(patterns.CURRENT_LIKE())
            and not _PRESENT.search(plan.toString())
        )
        zones, units = [], []
        if of_one_row:
            tree = analysed(frame.sparkSession, plan.expressions().apply(0))
            zones, units = unknown_zones(frame.sparkSession, tree), list(unknown_units(tree))
    except PySparkException as error:
        said = (error.getMessage() or str(error)).splitlines()[0]
        raise ConfigInvalidValue(f"{place}: {said}", remedy="Correct the expression") from None
    if not of_one_row:
        raise ConfigInvalidValue(
            f"{place} is about several rows",
            remedy="Use only functions of the values of one row",
        )
    if not stable:
        raise ConfigInvalidValue(
            f"{place} gives another value each time it is read",
            remedy="Use only functions of the row's own values",
        )
    if units:
        raise ConfigInvalidValue(
            f"{place} names a unit that Spark does not know there: {', '.join(units)}",
            remedy=(
                "Correct it: date_trunc takes microsecond to year, and trunc week, month, quarter "
                "and year. Of another one Spark makes NULL, for every row"
            ),
        )
    if zones:
        raise ConfigInvalidValue(
            f"{place} names a time zone that Spark does not know: {', '.join(zones)}",
            remedy="Correct it: the names are those of the tz database, such as Europe/London",
        )
    return kind


def _dimension_type(frame: DataFrame, dimension: Dimension, place: str) -> DataType:
    # To ask Spark takes a tenth of a second, for each of perhaps hundreds of columns.
    kind = (
        _type(frame, dimension.expression, place)
        if dimension.plain is None
        else frame.schema[dimension.plain].dataType
    )
    if not isinstance(kind, NullType) and single_value_type(kind) is None:
        raise ConfigInvalidValue(
            f"{place} is {kind.simpleString()}, which is no single value that Postgres has too",
            remedy="Choose one element, or make text or a number of it",
        )
    return kind


def _unfit(
    bound: Bound, name: str, kind: DataType, tables: Mapping[TableName, TargetFacts]
) -> Iterator[TargetMismatch]:
    """Columns of targets that do not hold what an expression gives."""
    given = single_value_type(kind)
    for target in targets_of(bound.config):
        found = tables.get(target.table)
        column = found.column(name) if found is not None and name in target.dimensions else None
        if given is None or column is None or keeps_expression(column.base, given):
            continue
        remedy = (
            f"Make the expression give {column.type}, such as with a cast; or give the column "
            "another type"
        )
        if column.base.name == "varchar":
            # Spark's texts have no limit, whatever they are cast to.
            remedy = "Give the column the type text"
        yield TargetMismatch(
            f"target {target.table} of {_of(bound)}: column {name} is {column.type}, and its "
            f"expression gives {kind.simpleString()}",
            remedy=remedy,
            table=target.table,
            aggregate=bound.config.name,
        )
