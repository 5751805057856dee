"""Java is told of the archive of Spark's classes where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark import class_archive
from penstock.spark.class_archive import use_archive


def test_an_archive_is_used_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "with a blank" / "classes.jsa"
    monkeypatch.setattr(class_archive, "archive_file", lambda: file)
    assert use_archive() == ""
    file.parent.mkdir()
    file.touch()
    assert use_archive().startswith(f'"-XX:SharedArchiveFile={file}" ')
