"""A table whose rows are counted by the server itself."""

from __future__ import annotations

from typing import NoReturn

NOTIFICATIONS = (
    "CREATE TABLE notifications (id int PRIMARY KEY, service text, status text)",
    "ALTER TABLE notifications ADD price numeric(10,2)",
    "ALTER TABLE notifications REPLICA IDENTITY FULL",
)


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed for plain columns")
