"""Everything dies at random moments, again and again: capture, the server, the connection."""

from __future__ import annotations

import random
import time
from pathlib import Path

from penstock.changelog.checking import check_log
from penstock.changelog.reader import LogReader
from penstock.postgres.embedded import EmbeddedPostgres
from support.capturing import capture_config
from support.changes import changes, commits_of_server, must_match_journal
from support.database import Database
from support.oracle import Mirror
from support.processes import PenstockProcess, capture_process
from support.proxy import Proxy
from support.repeats import repeats
from support.waiting import eventually
from support.workload import SLOT, Writers, prepare

# For each version of the server; the full counts are those of the promise, for each version too.
KILLS = repeats(3, soak=50)
CRASHES = repeats(1, soak=5)
CUTS = repeats(2, soak=20)


def test_the_log_equals_what_committed_after_all_of_it(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    # M1.8, M3.3, M3.4: SIGKILL, an immediate stop, a cut inside a message, under random
    # transactions with DDL in between; then each change is there once, in commit order, whole.
    chance = random.Random(own_server.version)
    faults = ["kill"] * KILLS + ["crash"] * CRASHES + ["cut"] * CUTS
    chance.shuffle(faults)
    mirror = Mirror(tmp_path / "log")
    with Database(own_server, "app") as database, Proxy(own_server.port) as proxy:
        prepare(database, journal=True)
        database.rows("SELECT pg_copy_logical_replication_slot(%s, 'watcher')", SLOT)
        config = capture_config(
            proxy.through(database.dsn()), tmp_path / "log", log={"segment_mib": 0.25}
        )
        with capture_process(config, tmp_path) as process:
            with Writers(database, 3, seed=own_server.version, journal=True) as writers:
                for fault in faults:
                    writers.await_commits(1)
                    mirror.await_marker(database, within_s=60)
                    time.sleep(chance.uniform(0.0, 0.3))
                    strike(fault, process, own_server, proxy, chance)
            for table, columns in {
                "items": ("id", "writer", "seq", "body"),
                "others": ("id", "writer", "seq"),
            }.items():
                mirror.must_equal(database, table, columns)
            process.stop()
        assert process.kills >= KILLS
        assert proxy.cuts == CUTS
        crashed = own_server.log_file.read_text().count("database system was interrupted")
        assert crashed == CRASHES
        found = changes(tmp_path / "log")
        must_match_journal(found, database)
        commits = sorted({change.commit_lsn for change in found})
        assert commits == commits_of_server(database, "watcher")
        assert check_log(LogReader(tmp_path / "log")).transactions == len(commits)
        assert database.confirmed(SLOT) <= mirror.complete_lsn


def strike(
    fault: str,
    process: PenstockProcess,
    server: EmbeddedPostgres,
    proxy: Proxy,
    chance: random.Random,
) -> None:
    match fault:
        case "kill":
            process.kill()
            process.start()
            if chance.random() < 0.2:  # once more, while it starts: it may be anywhere
                time.sleep(chance.uniform(0.0, 0.8))
                process.kill()
                process.start()
        case "crash":
            server.restart("immediate")
        case "cut":
            cuts = proxy.cuts
            proxy.cut_after(chance.choice((0, 500, 5_000, 50_000)) + chance.randrange(1000))
            eventually(lambda: proxy.cuts > cuts, "the cut", within_s=60)
