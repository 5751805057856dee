"""What the tasks of a large result are given."""

from __future__ import annotations

from typing import Any, cast

from penstock.pipelines.spark_staging import _Writer


def test_a_password_is_not_in_what_a_writer_prints_of_itself() -> None:  # M5.7, M7.3
    writer = _Writer("host=h password=hunter2", "target_dsn", cast(Any, None), 0, "parts")
    assert "hunter2" not in repr(writer)
    assert "target_dsn" in repr(writer)
