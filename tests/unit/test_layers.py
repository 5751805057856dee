"""Imports go one way: CONTRIBUTING's table of folders is their order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"


def folders_in_order() -> list[str]:
    table = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)/`", row)]


def imported_folders(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        modules = (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        for module in modules:
            match module.split("."):
                case ["penstock", folder, *_] if (SOURCE / folder).is_dir():
                    yield folder


def test_a_stage_imports_only_the_stages_above_it() -> None:
    order = folders_in_order()
    assert set(order) == {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    wrong = [
        f"{path.relative_to(SOURCE)} imports {imported}"
        for folder in order
        for path in (SOURCE / folder).rglob("*.py")
        for imported in imported_folders(path)
        if order.index(imported) > order.index(folder)
    ]
    assert wrong == []


def test_one_module_connects_to_servers_that_are_not_ours_alone() -> None:  # M7.6
    """It sets the search path. Benchmarks, demo and example have servers of their own, or are the
    application.
    """
    connecting = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in ("bench", "demo", "notify")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and re.fullmatch(r"psycopg\..*connect(_start)?", ast.unparse(node.func))
    }
    assert connecting == {"postgres/connect.py"}
