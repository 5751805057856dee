"""The names that Spark has for what goes wrong, such as CAST_INVALID_INPUT.

They are read from Spark's files, not asked of Spark: its process may be what is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from zipfile import ZipFile

from pyspark.errors.error_classes import ERROR_CLASSES_MAP
from pyspark.find_spark_home import _find_spark_home

# One of them has the list.
_JARS = "jars/spark-common-utils*.jar"
_LIST = "error/error-conditions.json"


@cache
def known_conditions() -> frozenset[str]:
    """Of Spark, if its files are here, and of its Python."""
    return frozenset([*ERROR_CLASSES_MAP, *_of_spark()])


def _of_spark() -> Iterator[str]:
    for jar in Path(_find_spark_home()).glob(_JARS):
        with ZipFile(jar) as files:
            conditions = json.loads(files.read(_LIST)) if _LIST in files.namelist() else {}
        for name, condition in conditions.items():
            yield name
            yield from (f"{name}.{part}" for part in condition.get("subClass", ()))
