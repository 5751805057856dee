"""What decides about the values of expressions, whatever a Spark session was made for."""

from __future__ import annotations

from pyspark.sql import SparkSession

# A date is a date of UTC unless the expression says otherwise, what overflows is an error, and
# columns whose names differ in capitals are two, as they are in Postgres.
_MEANING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
}


def with_meaning(spark: SparkSession) -> SparkSession:
    """The session, in which expressions mean the same as in every other.

    Before anything is made with it: Spark looks at these settings when it takes in rows, when it
    sees an expression, and when it computes.
    """
    for name, value in _MEANING.items():
        spark.conf.set(name, value)
    return spark
