"""Local files: nothing is written where another user has a hand. M7.6"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.changelog.consumers import register
from penstock.changelog.identity import LogIdentity
from penstock.changelog.storage import LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.errors import ConsumerUnwritable, LogFolderUnsafe
from penstock.lsn import Lsn

NOBODY = 65534
IDENTITY = LogIdentity.new(
    system_id="7", timeline=1, database="app", slot="penstock", start_lsn=Lsn(0x1000)
)


def give_away(path: Path) -> Path:
    """Return a path that belongs to another user: this one, or where only root may do that, `/`."""
    if os.geteuid() != 0:
        return Path("/")
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = give_away(tmp_path)
    with pytest.raises(LogFolderUnsafe, match="belongs to another user") as caught:
        LogWriter(folder, IDENTITY)
    assert str(folder) in caught.value.problem
    assert list(tmp_path.iterdir()) == []


def test_a_consumer_of_another_user_is_told_to_run_as_the_log_s_user(tmp_path: Path) -> None:
    folder = give_away(tmp_path)
    with pytest.raises(ConsumerUnwritable, match="the user who captures"):
        register(LocalStorage(folder), "daily", "log", Lsn(1))


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(LogFolderUnsafe, match="others may write to it") as caught:
        LogWriter(tmp_path, IDENTITY)
    assert f"chmod go-w {tmp_path}" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o755)  # they may look at the names
    LogWriter(tmp_path, IDENTITY).close()


def test_a_folder_inside_the_log_is_held_to_the_same(tmp_path: Path) -> None:
    (tmp_path / "log" / "consumers").mkdir(parents=True)
    (tmp_path / "log" / "consumers").chmod(0o777)
    with pytest.raises(LogFolderUnsafe, match="log/consumers"):
        LocalStorage(tmp_path / "log").replace("consumers/one.json", b"{}")


def test_the_log_may_be_reached_by_a_link_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "log").symlink_to(tmp_path / "large disk")
    LogWriter(tmp_path / "log", IDENTITY).close()
    assert (tmp_path / "large disk" / "log.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "log").symlink_to(tmp_path / "ours")
    give_away(tmp_path / "log")
    with pytest.raises(LogFolderUnsafe, match="belongs to another user"):
        LogWriter(tmp_path / "log", IDENTITY)
    assert list((tmp_path / "ours").iterdir()) == []


def hold(storage: LocalStorage, name: str) -> None:
    with storage.lock(name):
        pass


WRITES: dict[str, Callable[[LocalStorage, str], object]] = {
    "append": lambda storage, name: storage.append_to(name),
    "overwrite": lambda storage, name: storage.overwrite(name, b"x"),
    "sync": lambda storage, name: storage.sync(name),
    "lock": hold,
    "remove": lambda storage, name: storage.remove(name),
    "replace": lambda storage, name: storage.replace(name, b"x"),
}
# These act on the link itself, not on the file that it leads to.
BY_NAME = ("remove", "replace")


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder outside the log, and its one file, both as they were at the end."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text("precious")
    yield folder
    assert [each.name for each in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "precious"


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_no_write_follows_a_linked_folder_out_of_the_log(
    tmp_path: Path, victim: Path, write: Callable[[LocalStorage, str], object]
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "folder").symlink_to(victim)
    with pytest.raises(LogFolderUnsafe, match="is a symbolic link"):
        write(LocalStorage(tmp_path / "log"), "folder/file")


@pytest.mark.parametrize("kind", WRITES)
def test_no_write_follows_a_linked_file_out_of_the_log(
    tmp_path: Path, victim: Path, kind: str
) -> None:
    (tmp_path / "log" / "folder").mkdir(parents=True)
    (tmp_path / "log" / "folder" / "file").symlink_to(victim / "file")
    storage = LocalStorage(tmp_path / "log")
    if kind in BY_NAME:
        WRITES[kind](storage, "folder/file")
    else:
        with pytest.raises(LogFolderUnsafe, match="is a symbolic link"):
            WRITES[kind](storage, "folder/file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_a_file_of_another_user_in_our_folder_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("theirs")
    give_away(tmp_path / "file")
    with pytest.raises(LogFolderUnsafe, match="belongs to another user"):
        LocalStorage(tmp_path).append_to("file")
