"""A new file is written whole or not at all, and never over another one. M7.3"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigExists, ConfigNotWritten
from penstock.init import file
from penstock.init.file import write_new


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def fail(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_file_is_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_new(tmp_path / "new.toml", "a = 'ä'\n")
    assert (tmp_path / "new.toml").read_bytes() == "a = 'ä'\n".encode()
    assert files(tmp_path) == ["new.toml"]


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    there = tmp_path / "there.toml"
    there.write_text("mine")
    (tmp_path / "link.toml").symlink_to(tmp_path / "nowhere")
    for name in ("there.toml", "link.toml"):
        with pytest.raises(ConfigExists, match=f"{name} is there already"):
            write_new(tmp_path / name, "new")
    assert there.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_one_that_appears_meanwhile_stays_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new.toml"
    monkeypatch.setattr(file, "refuse_existing", lambda _: path.write_text("theirs"))
    with pytest.raises(ConfigExists):
        write_new(path, "ours")
    assert path.read_text() == "theirs"
    assert files(tmp_path) == ["new.toml"]


def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigNotWritten, match="No space left on device"):
        write_new(tmp_path / "new.toml", "all")
    assert files(tmp_path) == []


def test_without_links_it_is_written_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", fail)
    write_new(tmp_path / "new.toml", "all")
    assert (tmp_path / "new.toml").read_text() == "all"
    assert files(tmp_path) == ["new.toml"]


def test_a_folder_that_is_missing_or_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigNotWritten, match="there is no folder"):
        write_new(tmp_path / "no" / "new.toml", "")
    with pytest.raises(ConfigNotWritten, match="is a folder"):
        write_new(tmp_path, "")
    with pytest.raises(ConfigNotWritten, match="File name too long"):
        write_new(tmp_path / ("n" * 300), "")


def test_a_folder_that_may_not_be_written_to_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)
    with pytest.raises(ConfigNotWritten, match="Permission denied") as error:
        write_new(tmp_path / "new.toml", "")
    assert "or name another file with --config" in error.value.remedy
