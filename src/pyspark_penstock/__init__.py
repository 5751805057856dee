"""Registers the source with Spark, which imports every top-level `pyspark_*` package it finds.

A failure here would hide all sources on the path, so nothing heavy is imported: only what Spark
itself brings, and the class that is asked for.
"""

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
