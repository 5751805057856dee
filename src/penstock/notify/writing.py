"""The example's files, copied into a folder of one's own: for `penstock init --example notify`."""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path

from penstock.errors import ConfigError
from penstock.init.dsn import OpenDsn
from penstock.init.file import write_new
from penstock.toml import value

_CONFIGS = ("penstock.toml", "polling.toml")
FILES = ("README.md", "schema.sql", "targets.sql", *_CONFIGS, "load.py")
_DSN_LINE = re.compile(r"^dsn = .*$", re.MULTILINE)


def write_example(directory: Path, dsn: OpenDsn | None) -> list[Path]:
    """All files or none; `dsn` takes the place of the one in the configurations.

    A file that is there already is never touched: that is an error.
    """
    texts = {name: resources.files(__package__).joinpath(name).read_text("utf-8") for name in FILES}
    if dsn is not None:
        line = f"dsn = {value(dsn.text)}"
        for name in _CONFIGS:
            texts[name] = _DSN_LINE.sub(lambda _: line, texts[name], count=1)
    _prepare(directory)
    written: list[Path] = []
    try:
        for name, text in texts.items():
            write_new(directory / name, text)
            written.append(directory / name)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return written


def _prepare(directory: Path) -> None:
    there = [name for name in FILES if os.path.lexists(directory / name)]
    if there:
        raise ConfigError(
            f"{directory.absolute()} has already: {', '.join(there)}. Nothing was written",
            remedy="Go to an empty folder, or move these files away",
            files=there,
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be made: {error.strerror}",
            remedy="Go to a folder that you may write to",
            file=str(directory),
        ) from error
