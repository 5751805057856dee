"""The configuration file: nobody else should read a password in it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.config import Config
from penstock.errors import BadDsn
from penstock.ops.findings import Finding
from penstock.postgres.connect import parse_dsn


def check_file(path: Path, text: str, mode: int, config: Config) -> Iterator[Finding]:
    """`text` and `mode` are the file's; a password from the environment is not in it."""
    default = config.source.conninfo
    targets = (aggregate.conninfo(default) for aggregate in config.aggregate)
    given = (default, config.source.setup_conninfo, *targets)
    in_file = (dsn for dsn in given if dsn in text)
    if mode & (stat.S_IRGRP | stat.S_IROTH) and any(map(_has_password, in_file)):
        yield Finding(
            "config_file",
            "warning",
            str(path),
            "the file holds a password and others on this machine may read it",
            "A password in a DSN is a secret.",
            f"chmod 600 {path}, or give the DSN in the environment, as `penstock docs "
            "configuration` shows",
        )


def _has_password(dsn: str) -> bool:
    try:
        return bool(parse_dsn(dsn).get("password"))
    except BadDsn:
        return True  # it cannot be read, so it may hold one
