"""Looking at the machine's processes: what they were started with, as all users can see it, and
which ones a program has left, by a mark in the environment they inherited."""

from __future__ import annotations

from pathlib import Path


def command_lines() -> list[str]:
    """Of all processes, as `ps` shows them to everybody."""
    found = (_command_line(process) for process in _processes())
    return [line for line in found if line]


def processes_with(mark: str) -> list[str]:
    """The command lines of all processes that inherited `mark` in their environment."""
    return list(lines_by_pid(mark).values())


def lines_by_pid(mark: str) -> dict[int, str]:
    """As `processes_with`, by their numbers."""
    found = {}
    for process in _processes():
        try:
            inherited = mark.encode() in (process / "environ").read_bytes()
        except OSError:
            continue
        if inherited and (line := _command_line(process)) is not None:
            found[int(process.name)] = line
    return found


def _processes() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*"))


def _command_line(process: Path) -> str | None:
    try:
        line = (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return None
    return line.replace(b"\0", b" ").decode(errors="replace")
