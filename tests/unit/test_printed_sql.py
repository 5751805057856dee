"""No message holds SQL of its own: tests/integration/ops/test_printed_sql.py runs every kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parent
# They run their own SQL and print none for a person to run.
NO_MESSAGES = {"bench", "demo", "notify"}
SQL = re.compile(
    r"\bALTER (TABLE|SYSTEM|ROLE|PUBLICATION|DATABASE)\b|\bGRANT [A-Z]|\bREVOKE\b"
    r"|\bCREATE (UNIQUE |UNLOGGED )?(INDEX|TABLE|PUBLICATION|SCHEMA|ROLE)\b"
    r"|\bDROP (INDEX|TABLES?|PUBLICATION|SCHEMA|ROLE)\b|\bDELETE FROM\b"
    r"|\bSELECT (\*|pg_\w+\(|slot_name)"
)
MAKERS = {"printed", "reloaded", "terminated"}
# Functions with SQL that they do not print themselves.
RUN_BY_US = {
    # Steps, which set-up runs and a dry run prints; and grants that become a `PrintedSql`.
    "ops/plan.py": {
        "_adjust_publication",
        "_publication_steps",
        "_capture_role_steps",
        "_check_privileges",
        "owning_sql",
    },
    "ops/source_grants.py": {"missing_reads"},
    "capture/heartbeat.py": {"emit"},
    "init/survey.py": {"_sample_query"},
    "pipelines/locks.py": {"try_lock", "lock_soon"},
    "ops/target_grants.py": {"missing_grants", "check_privileges"},
    "ops/target_plan.py": {"_schemas"},
    "pipelines/targets.py": {"create_sql"},
    "postgres/identity.py": {"sql"},
    "postgres/slots.py": {"drop_sql", "drop_slot"},
    # Goes into a `PrintedSql` a few lines further on.
    "ops/checks/server.py": {"check_role"},
    "ops/old_values.py": {"_index_sql", "drop_sql"},
    "ops/published_targets.py": {"_remedies"},
    "pipelines/target_checks.py": {"target_errors", "_columns", "_retyped", "_measure"},
}


def literals(path: Path) -> Iterator[tuple[str, str, int]]:
    """(function, text, line) of each literal that looks like SQL, and is neither given to a maker
    nor executed. Outside of functions there are queries of our own.
    """
    tree = ast.parse(path.read_text())
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, str, int]]:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in MAKERS or attribute == "execute":
                return
        if isinstance(node, ast.Constant) and id(node) not in documentation:
            if isinstance(node.value, str) and SQL.search(node.value):
                yield function, node.value, node.lineno
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    yield from walk(tree, "")


def test_sql_that_a_message_prints_has_a_kind_and_so_a_test_that_runs_it() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        if name.split("/")[0] in NO_MESSAGES or name == "printed_sql.py":
            continue
        for function, text, line in literals(path):
            if function and function not in RUN_BY_US.get(name, set()):
                wrong.append(f"{name}:{line} in {function}: {text[:60]!r}")
    assert wrong == [], "give it to penstock.printed_sql.printed, with a kind of its own"
