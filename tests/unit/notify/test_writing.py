"""The example's files in a folder of one's own: all or none, and nothing is overwritten. M7.1"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

import penstock.notify
from penstock import config
from penstock.errors import ConfigError
from penstock.init.dsn import OpenDsn
from penstock.notify.writing import FILES, write_example

EXAMPLE = Path(penstock.notify.__file__).parent


def test_the_folder_of_examples_leads_to_it() -> None:
    assert (Path(__file__).parents[3] / "examples" / "notify").resolve() == EXAMPLE.resolve()


def test_a_folder_gets_all_files_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "notify"
    written = write_example(folder, None)
    assert written == [folder / name for name in FILES]
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    for path in written:
        assert path.read_bytes() == (EXAMPLE / path.name).read_bytes()


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me@db.example.com:5433/app?sslmode=verify-full",
        "host=/run/postgresql dbname=app",
        r"host=db user='a\'b\\c\"d' dbname='größe'",
    ],
)
def test_the_configuration_gets_the_dsn_and_loads(tmp_path: Path, dsn: str) -> None:
    write_example(tmp_path, OpenDsn(dsn))
    file = tmp_path / "penstock.toml"
    loaded = config.load(file, environ={})
    assert loaded.source.conninfo == dsn
    assert loaded.log.path == tmp_path / "penstock-log"
    before, after = (tomllib.loads(path.read_text()) for path in (EXAMPLE / file.name, file))
    after["source"]["dsn"] = before["source"]["dsn"]
    assert after == before


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_there_is_named_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=name):
        write_example(tmp_path, OpenDsn("dbname=app"))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_link_to_nowhere_is_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "load.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(ConfigError, match=r"load\.py"):
        write_example(tmp_path, None)
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        write_example(tmp_path / "file", None)


def test_what_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = os.fsync

    def full(descriptor: int) -> None:
        if len(list(tmp_path.iterdir())) > 2:
            raise OSError(28, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        write_example(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
