"""The connection string as the file may hold it: without its secrets. Pure.

The file is read by many and copied about, so no secret is ever written to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from psycopg import conninfo, pq

from penstock.postgres.connect import parse_dsn
from penstock.sections import Dsn

# libpq calls these settings for debugging, but who has them needs no password.
_KEYS = frozenset({"scram_client_key", "scram_server_key"})
_USERINFO = re.compile(r"^(postgres(?:ql)?://[^:@/]*):[^@/]*@")


@dataclass(frozen=True, slots=True)
class OpenDsn:
    """What may be shown of a connection string."""

    text: str
    # The parameters that were taken out.
    secrets: tuple[str, ...] = ()
    # The variable that holds the whole, if it came from there.
    variable: str | None = None


def without_secrets(dsn: Dsn, variable: str | None = None) -> OpenDsn:
    """`variable`: the one that `dsn` was read from.

    >>> without_secrets(Dsn("postgresql://app:secret@db/app?sslmode=require", "flag --dsn")).text
    'postgresql://app@db/app?sslmode=require'
    >>> without_secrets(Dsn("host=db password=secret dbname=app", "flag --dsn"))
    OpenDsn(text='dbname=app host=db', secrets=('password',), variable=None)
    """
    given = parse_dsn(dsn)
    secrets = tuple(name for name in given if name in _secret_parameters())
    if not secrets:
        return OpenDsn(str(dsn), (), variable)
    shown = {name: each for name, each in given.items() if name not in secrets}
    return OpenDsn(_cut(dsn, shown) or conninfo.make_conninfo("", **shown), secrets, variable)


def _secret_parameters() -> frozenset[str]:
    starred = (each for each in pq.Conninfo.get_defaults() if each.dispchar == b"*")
    return _KEYS | {each.keyword.decode() for each in starred}


def _cut(dsn: str, shown: dict[str, Any]) -> str | None:
    """A URI stays one, as far as nothing else is lost with the secrets."""
    text, mark, query = _USERINFO.sub(r"\1@", dsn).partition("?")
    if not re.match(r"postgres(?:ql)?://", dsn):
        return None
    kept = [part for part in query.split("&") if unquote(part.partition("=")[0]) in shown]
    text += mark * bool(kept) + "&".join(kept)
    return text if conninfo.conninfo_to_dict(text) == shown else None
