"""A pooler between us and a target: sessions must be ours alone. M5.3, M7.3"""

from __future__ import annotations

import pytest

from penstock.config import Config
from penstock.errors import SessionShared
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from penstock.pipelines.locks import is_locked, try_lock
from penstock.pipelines.target_session import connect_target
from penstock.sections import Dsn
from support.database import Database
from support.pgbouncer import pgbouncer


@pytest.mark.parametrize(
    "settings", [{}, {"default_pool_size": "1"}, {"server_round_robin": "1", "min_pool_size": "3"}]
)
def test_a_pool_that_gives_sessions_out_by_transaction_is_refused(
    database: Database, settings: dict[str, str]
) -> None:
    with (
        pgbouncer(database, "transaction", **settings) as dsn,
        pytest.raises(SessionShared) as caught,
    ):
        connect_target(Dsn(dsn, "target_dsn in [[aggregate]] counts"))
    assert caught.value.problem.startswith("target_dsn in [[aggregate]] counts leads to a pooler")
    assert "pool_mode = session" in caught.value.remedy


def test_a_pool_that_keeps_sessions_is_as_good_as_the_server(database: Database) -> None:
    with pgbouncer(database, "session") as dsn, connect_target(dsn) as one:
        assert try_lock(one, "job", "counts")
        with connect_target(dsn) as other:
            assert is_locked(other, "job", "counts")
    connect_target(database.dsn()).close()


def test_setup_and_doctor_say_so(database18: Database) -> None:
    database18.run("CREATE TABLE notes (id int PRIMARY KEY, status text NOT NULL)")
    with pgbouncer(database18, "transaction") as dsn:
        config = Config.model_validate(
            {
                "source": {
                    "dsn": database18.dsn(),
                    "tables": [{"name": "notes", "replica_identity": "full"}],
                },
                "aggregate": [
                    {
                        "name": "counts",
                        "target_dsn": dsn,
                        "sources": ["notes"],
                        "dimensions": ["status"],
                        "targets": ["counts"],
                    }
                ],
            }
        )
        with pytest.raises(SessionShared):
            setup(config)
        (found,) = [each for each in diagnose(config) if each.check == "target_connection"]
    assert found.level == "error"
    assert "leads to a pooler" in found.what
