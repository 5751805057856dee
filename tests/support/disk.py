"""A real file system of a few megabytes, that can be full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, mib: int) -> None:
        """Make room, as an operator would."""
        _mount("-o", f"remount,size={mib}m", str(self.path))

    def make_read_only(self) -> None:
        _mount("-o", "remount,ro", str(self.path))


@contextmanager
def small_disk(path: Path, mib: int) -> Iterator[SmallDisk]:
    """Mounted at `path` while the block runs; needs root, and says so if it is not to be had."""
    path.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "tmpfs", str(path))
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: whatever still holds a file must not keep the mount.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"this test mounts a small file system, which needs root: {done.stderr}")
