"""The replication connection against real servers: what it asks, reads, sends and leaves behind."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.errors import ConnectionLost, SourceUnavailable
from penstock.lsn import ZERO, Lsn
from penstock.postgres import connection as connection_module
from penstock.postgres import libpq_session, pace
from penstock.postgres.connect import connect
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.copying import copied_blocks
from penstock.postgres.embedded import EmbeddedPostgres, free_port
from penstock.postgres.envelope import Keepalive, StatusUpdate
from penstock.postgres.messages import (
    Begin,
    Commit,
    Insert,
    LogicalMessage,
    StreamCommit,
    StreamStart,
)
from support.capturing import capture_config, capturing
from support.database import Database
from support.oracle import Mirror
from support.proxy import Proxy
from support.replication import decode_all, payloads, read_until, replicating
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT, STREAMED_ROWS, insert_items, prepare

pytestmark = pytest.mark.every_version

# Those of both ends of two connections, as large as they may grow.
MORE_THAN_BUFFERS_TAKE = b"x" * 2**26


def ended(received: list[bytes], kind: bytes, times: int = 1) -> bool:
    return sum(payload[:1] == kind for payload in payloads(received)) >= times


def test_the_server_is_identified(database: Database) -> None:
    before = database.wal_position()
    with ReplicationConnection(database.dsn()) as connection:
        identity = connection.identify()
        assert connection.identify().system_id == identity.system_id, "it can be asked again"
    system_id = database.value("SELECT system_identifier::text FROM pg_control_system()")
    assert (identity.system_id, identity.timeline) == (system_id, 1)
    assert identity.database == database.name
    assert identity.wal_end >= before


def test_the_newest_protocol_of_each_server_is_spoken(database: Database) -> None:
    # M3.5
    with ReplicationConnection(database.dsn()) as connection:
        assert connection.server_version // 10_000 == database.server.version
        assert connection.protocol_version == (3 if database.server.version == 15 else 4)


def test_its_session_has_a_timeout_of_its_own(database: Database) -> None:
    # M1.4
    prepare(database)
    with ReplicationConnection(database.dsn(), wal_sender_timeout_s=7.5) as connection:
        result = connection._session.ask("SHOW wal_sender_timeout")
        assert result is not None
        assert result.get_value(0, 0) == b"7500ms"


def test_a_transaction_arrives_with_the_place_of_its_commit(database: Database) -> None:
    prepare(database)
    with replicating(database.dsn()) as connection, database.connect() as writer:
        insert_items(writer, 2)
        after = database.wal_position()
        messages = decode_all(connection, read_until(connection, lambda got: ended(got, b"C")))
    begin, *_, commit = messages
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert begin.final_lsn == commit.lsn < commit.end_lsn <= after
    assert sum(isinstance(message, Insert) for message in messages) == 2


def test_open_transactions_are_streamed_in_turns(database: Database) -> None:
    # M3.5: the workload of the scenarios really does what it says.
    prepare(database)
    with (
        replicating(database.dsn()) as connection,
        database.connect(autocommit=False) as one,
        database.connect(autocommit=False) as two,
    ):
        for _ in range(2):
            insert_items(one, STREAMED_ROWS, writer=1)
            insert_items(two, STREAMED_ROWS, writer=2)
        two.commit()
        one.commit()
        received = read_until(connection, lambda got: ended(got, b"c", 2))
        messages = decode_all(connection, received)
    turns = [xid for xid, _ in groupby(m.xid for m in messages if isinstance(m, StreamStart))]
    assert len(set(turns)) == 2
    assert len(turns) >= 3, "one, the other, and the one again"
    commits = [m.xid for m in messages if isinstance(m, StreamCommit)]
    assert commits == list(reversed(turns[:2]))


def test_a_subtransaction_that_rolls_back_is_taken_back_by_its_own_xid(database: Database) -> None:
    # M3.5
    prepare(database)
    with replicating(database.dsn()) as connection, database.connect() as writer:
        with writer.transaction():
            insert_items(writer, STREAMED_ROWS)
            # Released, so that it was streamed before the savepoint around it is rolled back.
            with writer.transaction(force_rollback=True):
                insert_items(writer, 2 * STREAMED_ROWS)
                read_until(connection, lambda got: ended(got, b"E", 2))
            insert_items(writer, STREAMED_ROWS)
        messages = payloads(read_until(connection, lambda got: ended(got, b"c")))
    aborts = [payload for payload in messages if payload[:1] == b"A"]
    assert len(aborts) == 1
    assert len(aborts[0]) == 9, "the short form, in protocol 4 too"
    assert aborts[0][1:5] != aborts[0][5:9]


def test_logical_messages_are_asked_for(database: Database) -> None:
    # M1.5
    prepare(database)
    with replicating(database.dsn()) as connection:
        database.rows("SELECT pg_logical_emit_message(false, 'penstock', 'beat')")
        received = read_until(connection, lambda got: ended(got, b"M"))
        (message,) = decode_all(connection, received)
    assert isinstance(message, LogicalMessage)
    assert (message.prefix, message.content) == ("penstock", b"beat")


def test_a_question_is_answered_with_the_servers_position(database: Database) -> None:
    # M1.4
    prepare(database)
    with replicating(database.dsn()) as connection:
        asked = database.wal_position()
        connection.send(StatusUpdate(ZERO, ZERO, reply_requested=True))
        received = read_until(
            connection,
            lambda got: any(m[:1] == b"k" and Keepalive.parse(m).wal_end >= asked for m in got),
        )
    assert received


def test_only_what_is_durable_moves_the_slot(database: Database) -> None:
    # M1.8
    prepare(database)
    before = database.confirmed(SLOT)
    with replicating(database.dsn()) as connection, database.connect() as writer:
        insert_items(writer, 1)
        received = read_until(connection, lambda got: ended(got, b"C"))
        commit = decode_all(connection, received)[-1]
        assert isinstance(commit, Commit)
        connection.send(StatusUpdate(commit.end_lsn, before, reply_requested=False))
    assert database.confirmed(SLOT) == before
    with replicating(database.dsn()) as connection:
        connection.send(StatusUpdate(commit.end_lsn, commit.end_lsn, reply_requested=False))
    assert database.confirmed(SLOT) == commit.end_lsn, "read before the goodbye was answered"


def test_read_waits_no_longer_than_asked_and_is_woken_from_elsewhere(database: Database) -> None:
    prepare(database)
    with replicating(database.dsn()) as connection:
        eventually(lambda: connection.read(0.2) == [], "the server has said its first words")
        started = time.monotonic()
        while connection.read(0.1):
            started = time.monotonic()
        assert 0.05 < time.monotonic() - started < 1.0
        timer = threading.Timer(0.1, connection.wake)
        timer.start()
        while connection.read(5.0):
            pass  # a keepalive of the server's own, which nobody asked for
        assert time.monotonic() - started < 3.0
        timer.join()
    connection.wake()  # on a closed connection: nobody waits, nothing happens


def test_after_a_clean_end_the_slot_is_free_at_once(database: Database) -> None:
    prepare(database)
    for _ in range(5):
        with replicating(database.dsn()):
            pass
        assert database.value("SELECT active FROM pg_replication_slots") is False


def test_the_end_is_in_time_although_the_server_reads_nothing(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M1.6: what we still have to say does not fit, and never will.
    monkeypatch.setattr(connection_module, "_GOODBYE_S", 0.2)
    prepare(database18)
    with (
        Proxy(database18.server.port) as proxy,
        ReplicationConnection(proxy.through(database18.dsn())) as connection,
    ):
        connection.start(SLOT, PUBLICATION, ZERO)
        proxy.stall()
        connection._pgconn.put_copy_data(MORE_THAN_BUFFERS_TAKE)
        ends(connection.end)
        assert connection._pgconn.flush() == 1, "it was not waiting at all"


def test_a_command_to_a_server_that_reads_nothing_is_given_up(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libpq_session, "ANSWER_S", 0.2)
    prepare(database18)
    with (
        Proxy(database18.server.port) as proxy,
        ReplicationConnection(proxy.through(database18.dsn())) as connection,
    ):
        proxy.stall()
        error = ends(lambda: connection._session.ask(MORE_THAN_BUFFERS_TAKE.decode()))
    assert isinstance(error, ConnectionLost)
    assert "did not answer" in str(error)


def ends(work: Callable[[], object]) -> BaseException | None:
    """What it raised; a call that never returns fails the test instead of stopping all of them."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
        except ConnectionLost as error:
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert raised, "it waits for ever"
    return raised[0]


def test_what_came_before_the_end_is_handed_out_before_the_end_is_told(database: Database) -> None:
    # An ended walsender's last rows and its error arrive together.
    prepare(database)
    with ReplicationConnection(database.dsn()) as connection:
        connection.start(SLOT, PUBLICATION, ZERO)
        with database.connect() as writer:
            insert_items(writer, 3)
            read_until(connection, lambda got: ended(got, b"C"))
            insert_items(writer, 3)
            written = database.wal_position()
            eventually(lambda: sent(database) >= written, "the server has sent them")
            database.rows("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots")
        received: list[bytes] = []
        with pytest.raises(ConnectionLost, match="administrator command"):
            read_to_the_end(connection, received)
        assert ended(received, b"C")
        with pytest.raises(ConnectionLost):
            connection.read(0.0)


def sent(database: Database) -> Lsn:
    return database.lsn("SELECT coalesce(max(sent_lsn), '0/0') FROM pg_stat_replication")


def read_to_the_end(connection: ReplicationConnection, received: list[bytes]) -> NoReturn:
    while True:
        received += map(bytes, connection.read(5.0))


def always_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(pace, "_BACKLOG_BYTES", 0)


def test_a_backlog_is_taken_in_steps_that_are_bounded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # M2.5: what a step brings is handed out after a megabyte, and goes on without a pause.
    always_in_steps(monkeypatch)
    prepare(database)
    with database.connect() as writer:
        for _ in range(200):
            insert_items(writer, 200)
    kinds: list[bytes] = []
    runs = []
    in_steps = False
    with replicating(database.dsn()) as connection:
        while kinds.count(b"C") < 200:
            run = connection.read(5.0)
            kinds += [payload[:1] for payload in payloads([bytes(each) for each in run])]
            runs.append(sum(map(len, run)))
            # On a slow machine all of it may come in one step, of which we do not see the end.
            in_steps |= connection.took_a_step or connection._is_amid_step
    assert in_steps, "the server is on this machine"
    # More than libpq's buffer holds, and no more than a step and one read.
    assert 2**15 < max(runs) < 2**20 + 2**19
    assert re.fullmatch(rb"(BR?I{200}C)+", b"".join(kinds)), "all of it, in order"


def test_what_commits_after_a_backlog_is_read_as_it_comes(database: Database) -> None:
    prepare(database)
    with replicating(database.dsn()) as connection, database.connect() as writer:
        connection._pace.is_much = True
        connection.read(0.1)
        insert_items(writer, 1)
        read_until(connection, lambda got: ended(got, b"C"))
        assert not connection.took_a_step
        assert not connection._pace.is_much


@pytest.mark.parametrize("rows", [3, 700, 3000])
def test_a_stream_that_ends_in_a_step_is_handed_out_and_its_end_is_told(
    database18: Database, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    always_in_steps(monkeypatch)
    prepare(database18)
    with ReplicationConnection(database18.dsn()) as connection:
        connection.start(SLOT, PUBLICATION, ZERO)
        connection._pace.is_much = True
        with database18.connect() as writer:
            insert_items(writer, rows)
            written = database18.wal_position()
            eventually(lambda: sent(database18) >= written, "the server has sent them")
            database18.rows(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
            )
        received: list[bytes] = []
        with pytest.raises(ConnectionLost, match="administrator command"):
            read_to_the_end(connection, received)
        kinds = [payload[:1] for payload in payloads(received)]
        assert (kinds.count(b"I"), kinds[-1].upper()) == (rows, b"C"), "streamed or not"


def test_a_wake_ends_the_pause_of_a_step(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "STEP_S", 60.0)
    prepare(database18)
    with replicating(database18.dsn()) as connection:
        connection._pace.is_much = True
        connection.wake()
        started = time.monotonic()
        connection.read(0.0)
        assert time.monotonic() - started < 30.0


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(SourceUnavailable):
        ReplicationConnection(f"host=127.0.0.1 port={free_port()} dbname=x user=x")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
def test_replication_works_over_tls(tmp_path: Path) -> None:
    # Debian's server has TLS, the ones from PyPI have not.
    server = EmbeddedPostgres(15, settings={"ssl": "on", "logical_decoding_work_mem": "64kB"})
    server._initialise()
    make_certificate(server.data_dir)
    with server, Database(server, "app") as database:
        prepare(database)
        dsn = database.dsn(sslmode="require")
        with ReplicationConnection(dsn) as connection:
            assert connection._pgconn.ssl_in_use
            assert not connection._is_local, "steps would be of single messages"
        mirror = Mirror(tmp_path)
        with capturing(capture_config(dsn, tmp_path)) as running, database.connect() as writer:
            insert_items(writer, 5_000)
            for n in range(20):
                insert_items(writer, 1, writer=n)
            mirror.must_equal(database)
            assert running.connections == 1
            assert running.stop() < 0.5
        # Rows that are larger than what is read at once.
        copy = b"COPY (SELECT repeat('x', 100000) FROM generate_series(1, 300)) TO STDOUT"
        with connect(dsn) as reading, reading.cursor() as cursor, cursor.copy(copy):
            assert sum(map(len, copied_blocks(reading.pgconn))) == 300 * 100_001


def make_certificate(data_dir: Path) -> None:
    key, certificate = data_dir / "server.key", data_dir / "server.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)


def test_values_are_written_the_same_whatever_the_database_is_set_to(database: Database) -> None:
    # M4.6
    prepare(database, slot=False)
    values = {
        "moment": ("timestamptz", "2026-03-04 05:06:07+03", b"2026-03-04 02:06:07+00"),
        "day": ("date", "0044-03-15 BC", b"0044-03-15 BC"),
        "span": ("interval", "1 day 02:00", b"1 day 02:00:00"),
        "octets": ("bytea", r"\x00ff", rb"\x00ff"),
        "ratio": ("float8", "0.1", b"0.1"),
        "third": ("float4", "0.3333333333333333", b"0.33333334"),
        "price": ("money", "$1,234.50", b"$1,234.50"),
        "relation": ("regclass", "public.items", b"public.items"),
    }
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in values.items())
    odd = {
        "datestyle": "'German, DMY'",
        "intervalstyle": "sql_standard",
        "timezone": "'Asia/Tokyo'",
        "bytea_output": "escape",
        "extra_float_digits": "-3",
        "search_path": "public",
    }
    database.run(
        f"CREATE TABLE valued ({columns})",
        f"ALTER PUBLICATION {PUBLICATION} ADD TABLE valued",
        *(f"ALTER DATABASE {database.name} SET {name} = {value}" for name, value in odd.items()),
    )
    database.create_slot(SLOT)
    literals = ", ".join(f"'{literal}'" for _, literal, _ in values.values())
    with replicating(database.dsn()) as connection:
        database.run(f"SET datestyle = ISO; INSERT INTO valued VALUES ({literals})")
        received = read_until(connection, lambda got: ended(got, b"C"))
        messages = decode_all(connection, received)
    (insert,) = (message for message in messages if isinstance(message, Insert))
    assert insert.new == tuple(expected for _, _, expected in values.values())
