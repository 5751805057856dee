"""What Spark imports to find the source."""

from __future__ import annotations

import subprocess
import sys

LIST_MODULES = """
import sys
import pyspark.sql.datasource, pyspark.sql.types
before = set(sys.modules)
import pyspark_penstock
print(*sorted(set(sys.modules) - before))
"""


def test_to_find_the_source_nothing_is_imported_but_spark() -> None:  # M5.1
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["pyspark_penstock"]
