"""The configuration file: nobody else should read a password in it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.config import SourceConfig
from penstock.errors import BadDsn
from penstock.ops.findings import Finding
from penstock.postgres.connect import parse_dsn


def check_file(path: Path, text: str, mode: int, source: SourceConfig) -> Iterator[Finding]:
    """`text` and `mode` are the file's; a password from the environment is not in it."""
    in_file = (dsn for dsn in (source.conninfo, source.setup_conninfo) if dsn in text)
    if mode & (stat.S_IRGRP | stat.S_IROTH) and any(map(_has_password, in_file)):
        yield Finding(
            "config_file",
            "warning",
            str(path),
            "the file holds a password and others on this machine may read it",
            "A password in a DSN is a secret.",
            f"chmod 600 {path}, or give the DSN as PENSTOCK_SOURCE_DSN",
        )


def _has_password(dsn: str) -> bool:
    try:
        return bool(parse_dsn(dsn).get("password"))
    except BadDsn:
        return True  # it cannot be read, so it may hold one
