"""Loaded by each Python that has this folder on its PYTHONPATH: Spark's workers begin with what
they need.

Spark forks its workers from one process for each kind of them, and each would import the same
again: half a second of a core, several times in a test.
"""

from __future__ import annotations

import sys
from importlib import import_module

if "pyspark.daemon" in sys.orig_argv:
    for name in ("pyspark.worker", "penstock.spark.source", "penstock.spark.deltas"):
        import_module(name)
