"""What the file may hold of a connection string: everything but its secrets. M7.3"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import conninfo

from penstock.errors import BadDsn
from penstock.init.dsn import without_secrets
from penstock.sections import Dsn

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        (f"postgresql://app:{SECRET}@db:5432/app", "postgresql://app@db:5432/app"),
        (f"postgres://app:{SECRET}%40x@db/app", "postgres://app@db/app"),
        (f"postgresql://app:{SECRET}?x@db/app", "postgresql://app@db/app"),
        (f"postgresql://:{SECRET}@db/app", "postgresql://@db/app"),
        (f"postgresql://db/app?password={SECRET}", "postgresql://db/app"),
        (
            f"postgresql://app@a:1,b:2/app?sslmode=require&p%61ssword={SECRET}&connect_timeout=3",
            "postgresql://app@a:1,b:2/app?sslmode=require&connect_timeout=3",
        ),
        (f"postgresql://app:{SECRET}@%2Frun%2Fpg/app", "postgresql://app@%2Frun%2Fpg/app"),
        (f"host=db password='{SECRET} ' dbname='a b'", "dbname='a b' host=db"),
        (f"password={SECRET}", ""),
    ],
)
def test_a_password_is_cut_out_and_nothing_else(dsn: str, shown: str) -> None:
    found = without_secrets(Dsn(dsn, "flag --dsn"))
    assert (found.text, found.secrets) == (shown, ("password",))


@pytest.mark.parametrize("name", ["sslpassword", "scram_client_key", "scram_server_key"])
def test_other_secrets_are_cut_out_too(name: str) -> None:
    for dsn in (f"host=db {name}={SECRET}", f"postgresql://db/?{name}={SECRET}"):
        found = without_secrets(Dsn(dsn, "flag --dsn"))
        assert SECRET not in found.text
        assert found.secrets == (name,)


@pytest.mark.parametrize("dsn", ["postgresql://app@db/app", "service=app", "host=db  user=x"])
def test_what_holds_no_secret_stays_as_it_was_written(dsn: str) -> None:
    assert without_secrets(Dsn(dsn, "flag --dsn")).text == dsn


def test_what_cannot_be_read_is_refused_by_the_flag_it_stands_in() -> None:
    with pytest.raises(BadDsn, match="flag --dsn is not a connection string"):
        without_secrets(Dsn("nonsense", "flag --dsn"))


texts = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1)


@given(password=texts, user=texts, dbname=texts)
def test_whatever_the_parameters_hold_only_the_password_goes(
    password: str, user: str, dbname: str
) -> None:
    others = {"user": user, "dbname": dbname.replace("@", ""), "host": "db"}
    dsn = conninfo.make_conninfo("", password=password, **others)
    found = without_secrets(Dsn(dsn, "flag --dsn"))
    assert conninfo.conninfo_to_dict(found.text) == conninfo.conninfo_to_dict("", **others)
