"""Writes a new file whole or not at all, and never over another one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import ConfigExists, ConfigNotWritten


def refuse_existing(path: Path) -> None:
    """Asked before the database is, so that nobody waits for a refusal."""
    with _explained(path):
        if path.is_dir():
            raise ConfigNotWritten(
                f"{path} is a folder", remedy="Name a file in it with --config", file=str(path)
            )
        if os.path.lexists(path):
            raise FileExistsError
        if not path.parent.is_dir():
            raise ConfigNotWritten(
                f"there is no folder {path.parent}",
                remedy="Make it first, or name another file with --config",
                file=str(path),
            )


def write_new(path: Path, text: str) -> None:
    """Complete under another name first: the link to its own name is one step, and fails if
    somebody has made such a file meanwhile."""
    refuse_existing(path)
    # Short, whatever the length of the file's own name.
    unfinished = path.parent / f".penstock-{secrets.token_hex(8)}"
    with _explained(path):
        try:
            _write(unfinished, text)
            _link(unfinished, path, text)
        finally:
            unfinished.unlink(missing_ok=True)


def _link(unfinished: Path, path: Path, text: str) -> None:
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    except OSError:  # some file systems have no links
        _write(path, text)


def _write(path: Path, text: str) -> None:
    # The user's umask decides who may read it; it holds no secret.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise ConfigExists(
            f"{path} is there already, and is not overwritten",
            remedy="Move it away, or name another file with --config",
            file=str(path),
        ) from None
    except OSError as error:
        raise ConfigNotWritten(
            f"{path} cannot be written: {error.strerror}",
            remedy="Check that you may write there and that there is room, "
            "or name another file with --config",
            file=str(path),
        ) from None
