"""Finding the processes that a program has left, by a mark in the environment they inherited."""

from __future__ import annotations

from pathlib import Path


def processes_with(mark: str) -> list[str]:
    """The command lines of all processes that inherited `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
