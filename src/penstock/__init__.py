"""Penstock carries PostgreSQL's write-ahead log to Apache Spark."""
