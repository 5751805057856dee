"""The commands of docs/quickstart.md, as they stand there, on a database that is no example."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from support.database import Database
from support.waiting import eventually

DOCUMENT = Path(__file__).parents[2] / "docs" / "quickstart.md"
PENSTOCK = Path(sys.executable).parent / "penstock"
# As pgbench makes it, in small.
PGBENCH = (
    "CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88))",
    "CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84))",
    "CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))",
    "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp)",
    "INSERT INTO pgbench_branches SELECT n, 0 FROM generate_series(1, 3) AS n",
    "INSERT INTO pgbench_tellers SELECT n, 1 + n % 3, 0 FROM generate_series(1, 30) AS n",
    "INSERT INTO pgbench_accounts SELECT n, 1 + n % 3, n, '' FROM generate_series(1, 3000) AS n",
    "ANALYZE",
)
TRUTH = "SELECT bid, count(*), sum(abalance) FROM pgbench_accounts GROUP BY 1 ORDER BY 1"


def blocks(language: str) -> str:
    found = re.findall(
        rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL
    )
    return "".join(found)


def command(name: str, database: Database) -> list[str | Path]:
    """As the document has it, but for the database."""
    lines = [shlex.split(line) for line in blocks("sh").splitlines()]
    ((_, *words),) = [words for words in lines if words[1] == name]
    dsn = database.dsn()
    return [PENSTOCK, *(word.replace("postgresql://localhost/app", dsn) for word in words)]


def test_the_quickstart_does_what_it_says(database18: Database, tmp_path: Path) -> None:
    # M5.2, M5.5, M5.6, M7.1
    def done(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(name, database18), cwd=tmp_path, check=False, capture_output=True, text=True
        )

    database18.run(*PGBENCH)
    written = done("init")
    assert written.returncode == 0, written.stderr
    for following in ("penstock doctor", "penstock setup", "penstock run"):
        assert following in written.stdout
    file = (tmp_path / "penstock.toml").read_text()
    for line in blocks("toml").splitlines():
        assert line in file
    # No publication and no slot yet, as it says.
    assert done("doctor").returncode == 2
    made = done("setup")
    assert made.returncode == 0, made.stdout + made.stderr
    assert done("doctor").returncode < 2

    # In the folder may be anything, also what has the name of a module.
    (tmp_path / "queue.py").write_text("raise RuntimeError")
    running = subprocess.Popen(
        command("run", database18), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        database18.run("UPDATE pgbench_accounts SET abalance = abalance + 7 WHERE aid < 1000")
        await_counts(database18, running)
        database18.run(
            "UPDATE pgbench_accounts SET abalance = abalance - 3, bid = 1 WHERE aid % 5 = 0",
            "DELETE FROM pgbench_accounts WHERE aid > 2900",
            "INSERT INTO pgbench_accounts VALUES (9999, 8, 10, '')",
        )
        await_counts(database18, running)
        verified = done("verify")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert "0 differences" in verified.stdout
    finally:
        running.send_signal(signal.SIGINT)
        try:
            _, said = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == 0, said
    assert "first change applied after" in said

    assert done("teardown").returncode == 0
    assert (
        database18.rows(
            "SELECT slot_name FROM pg_replication_slots WHERE database = %s", database18.name
        )
        == []
    )


def await_counts(database: Database, running: subprocess.Popen[str]) -> None:
    shown = blocks("sql").strip().rstrip(";") + " WHERE count <> 0 ORDER BY bid"
    truth = database.rows(TRUTH)

    def equal() -> bool:
        assert running.poll() is None
        return database.rows(shown) == truth

    eventually(equal, "the counts are those of the table", within_s=150)
