"""A real file system of a few megabytes, that can be full.

Whoever may not mount here does so in a user namespace, if there are such; a process holds it, and
its mounts are reached through `/proc`. Where neither is to be had, the test is skipped.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest


def no_room(*_: object) -> NoReturn:
    """In the place of whatever writes: as if the disk were full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SmallDisk:
    def __init__(self, path: Path, mount: Mount) -> None:
        # As this process sees it, which may be by another way than the one it is mounted at.
        self.path = path
        self._mount = mount

    def resize(self, mib: int) -> None:
        """Make room, as an operator would."""
        self._mount.again(f"size={mib}m")

    def make_read_only(self) -> None:
        self._mount.again("ro")


class NotMounted(Exception):
    """In the words of the program that failed."""


class Mount:
    """A tmpfs at `path`, for those who see it: all, or the processes of one namespace."""

    def __init__(self, path: Path, options: str, prefix: Sequence[str] = ()) -> None:
        self._path = path
        self._prefix = prefix
        self._mount(options)

    def again(self, options: str) -> None:
        self._mount(f"remount,{options}")

    def _mount(self, options: str) -> None:
        # The source is named so that a remount leaves out the options that are in force: one is
        # the owner, by a number that means somebody else in a namespace.
        _call([*self._prefix, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self._path)])


@contextmanager
def small_disk(path: Path, mib: int) -> Iterator[SmallDisk]:
    """Mounted while the block runs. Use the disk's own `path`: it may be another than this one."""
    path.mkdir()
    options = f"size={mib}m,mode=0700"
    with ExitStack() as stack:
        try:
            disk = _here(path, options, stack)
        except NotMounted as here:
            try:
                disk = _in_a_namespace(path, options, stack)
            except NotMounted as there:
                pytest.skip(
                    "a small file system cannot be mounted, which needs CAP_SYS_ADMIN"
                    f" ({here}) or unprivileged user namespaces ({there})"
                )
        yield disk


def _here(path: Path, options: str, stack: ExitStack) -> SmallDisk:
    mount = Mount(path, options)
    # Lazily: whatever still holds a file must not keep the mount.
    stack.callback(_call, ["umount", "--lazy", str(path)])
    return SmallDisk(path, mount)


def _in_a_namespace(path: Path, options: str, stack: ExitStack) -> SmallDisk:
    pid = stack.enter_context(_namespace())
    enter = ["nsenter", "--user", "--preserve-credentials", "--mount", "--target", str(pid)]
    mount = Mount(path, options, enter)
    # It need not be unmounted: it goes with the last process of its namespace.
    return SmallDisk(Path(f"/proc/{pid}/root") / path.relative_to("/"), mount)


@contextmanager
def _namespace() -> Iterator[int]:
    """The process that keeps a namespace in which we may mount."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", "echo ready; cat"]
    try:
        holder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as error:
        raise NotMounted(str(error)) from None
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            raise NotMounted(holder.communicate()[1].strip())
        yield holder.pid
    finally:
        holder.communicate()  # the end of its input ends it


def _call(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotMounted(str(error)) from None
    except subprocess.CalledProcessError as error:
        raise NotMounted(error.stderr.partition("\n")[0]) from None
