"""The example's files, copied into a folder of one's own: for `penstock init --example notify`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path

from penstock.errors import ConfigError
from penstock.postgres.connect import parse_dsn
from penstock.sections import Dsn

FILES = ("README.md", "schema.sql", "targets.sql", "penstock.toml", "load.py")
_CONFIG = "penstock.toml"
_DSN_LINE = re.compile(r"^dsn = .*$", re.MULTILINE)


def write_example(directory: Path, dsn: str | None) -> list[Path]:
    """All files or none; `dsn` takes the place of the one in the configuration.

    A file that is there already is never touched: that is an error. So is a DSN that libpq cannot
    read. The configuration is for its owner's eyes, since a DSN may hold a password.
    """
    texts = {name: resources.files(__package__).joinpath(name).read_text("utf-8") for name in FILES}
    if dsn is not None:
        texts[_CONFIG] = _with_dsn(texts[_CONFIG], dsn)
    there = [directory / name for name in FILES if _is_there(directory / name)]
    if there:
        names = ", ".join(path.name for path in there)
        raise ConfigError(
            f"{directory} has already: {names}. Nothing was written",
            remedy="Name an empty folder, or move these files away",
            files=[str(path) for path in there],
        )
    return _write(directory, texts)


def _with_dsn(text: str, dsn: str) -> str:
    parse_dsn(Dsn(dsn, "--dsn"))
    # JSON's quoting is TOML's, but for this one character.
    quoted = json.dumps(dsn, ensure_ascii=False).replace("\x7f", "\\u007f")
    return _DSN_LINE.sub(lambda _: f"dsn = {quoted}", text, count=1)


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _write(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = directory / name
            # Not over a file that somebody made just now.
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                if name == _CONFIG:
                    path.chmod(0o600)
                file.write(text)
    except OSError as error:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise ConfigError(
            f"{error.filename or directory} cannot be written: {error.strerror}",
            remedy="Name a folder that you may write to",
            file=str(error.filename or directory),
        ) from error
    return written
