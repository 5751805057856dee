"""`penstock capture` as a process, where it cannot run: exit code 2, one sentence, a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import pytest

from penstock.postgres.embedded import EmbeddedPostgres
from support import refusals
from support.database import Database
from support.processes import capture_process
from support.refusals import Trouble


def must_refuse(
    database: Database, directory: Path, trouble: Trouble, problem: str, remedy: str
) -> None:
    """One line says what is wrong, the next what to do; before them only attempts, if any."""
    with (
        trouble(database, directory / "log") as config,
        # A slot that is in use would be tried again for more than a minute.
        capture_process(config, directory, impatient=trouble is refusals.slot_in_use) as process,
    ):
        said = process.failure(within_s=30.0)
    assert "Traceback" not in said
    *attempts, first, second = said.splitlines()
    assert all("reconnecting" in line and "gives_up_in_s=" in line for line in attempts)
    assert first.startswith("error: ")
    assert problem in first
    assert second.startswith("  fix: ")
    assert remedy in second
    assert "s3cret" not in said


Case: TypeAlias = tuple[int, Trouble, str, str]


def each(server: str, *cases: Case) -> pytest.MarkDecorator:
    """On which version it is made, what it is, and what is said of it."""
    return pytest.mark.parametrize(
        (server, "trouble", "problem", "remedy"),
        cases,
        indirect=[server],
        ids=[trouble.__name__ for _, trouble, _, _ in cases],
    )


@each(
    "server",
    (18, refusals.missing_slot, 'slot "penstock" does not exist', "penstock setup"),
    (18, refusals.physical_slot, "is a physical slot", "drop this one"),
    # Where there is another plugin.
    (15, refusals.slot_of_another_plugin, '"test_decoding", not "pgoutput"', "drop this one"),
    (18, refusals.two_phase_slot, "has two-phase decoding on", "drop this one"),
    (18, refusals.slot_in_use, "is in use by process", "SELECT pg_terminate_backend("),
    (18, refusals.folder_open_to_others, "others may write to it", "chmod go-w"),
    (18, refusals.missing_publication, 'publication "misspelt"', "correct `publication`"),
    (
        18,
        refusals.role_without_replication,
        "permission denied to start WAL sender",
        "ALTER ROLE plain REPLICATION",
    ),
    (18, refusals.foreign_directory, "/log", "directory in [log]"),
    (18, refusals.log_of_another_database, '"t_its_neighbour"', "Correct the DSN"),
)
def test_what_cannot_be_captured_is_said_in_a_sentence_with_a_remedy(
    database: Database, tmp_path: Path, trouble: Trouble, problem: str, remedy: str
) -> None:
    # M7.3, M3.5, M3.7
    must_refuse(database, tmp_path, trouble, problem, remedy)


@each(
    "own_server",
    (18, refusals.invalidated_slot, "was invalidated by the server", "seed the targets again"),
    (18, refusals.wrong_password, "password authentication failed", "Check the user"),
)
def test_what_the_server_itself_refuses_is_said_in_a_sentence_with_a_remedy(
    own_server: EmbeddedPostgres, tmp_path: Path, trouble: Trouble, problem: str, remedy: str
) -> None:
    # M1.7, M7.3
    with Database(own_server, "app") as database:
        must_refuse(database, tmp_path, trouble, problem, remedy)
