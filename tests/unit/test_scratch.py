"""What a process that was killed has left is removed, and nothing else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.errors import ScratchUnwritable
from penstock.scratch import scratch_folder

KILLED = """
import os, signal
from penstock.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_no_room_for_it_is_one_of_our_errors(monkeypatch: pytest.MonkeyPatch) -> None:  # M7.3
    def full(**_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/penstock-new-x")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with (
        pytest.raises(ScratchUnwritable, match="No space left on device") as caught,
        scratch_folder(),
    ):
        pass
    assert "TMPDIR" in caught.value.remedy


def test_it_is_gone_afterwards(place: Path) -> None:
    with scratch_folder() as folder:
        assert list(place.iterdir()) == [folder]
        (folder / "inside").mkdir()
    assert list(place.iterdir()) == []


def test_the_next_one_removes_what_was_left_and_not_what_is_in_use(place: Path) -> None:
    with scratch_folder() as first:
        subprocess.run([sys.executable, "-c", KILLED], check=False)
        (left,) = (each for each in place.iterdir() if each != first)
        assert (left / "file").exists()
        with scratch_folder() as second:
            assert set(place.iterdir()) == {first, second}


def test_what_is_no_folder_of_ours_is_let_be(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(place / "penstock-tmp-fifo")
    (place / "penstock-tmp-file").touch()
    (place / "kept").mkdir()
    (place / "penstock-tmp-link").symlink_to(place / "kept")
    theirs = place / "penstock-tmp-theirs"
    theirs.mkdir()
    before = set(place.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: theirs.stat().st_uid + 1)
        with scratch_folder():
            pass
    assert set(place.iterdir()) == before
    with scratch_folder():
        pass
    assert set(place.iterdir()) == before - {theirs}
