"""What doctor says: one finding per thing it looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from penstock.errors import PenstockError

Level = Literal["ok", "info", "warning", "error"]
_LEVELS: tuple[Level, ...] = ("error", "warning", "info", "ok")


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` is the case, `why` it matters, and the SQL or setting that mends it, if any."""

    check: str
    level: Level
    subject: str
    what: str
    why: str = ""
    fix: str = ""


def from_error(
    check: str, subject: str, error: PenstockError, why: str = "Penstock cannot run."
) -> Finding:
    return Finding(check, "error", subject, error.problem, why, error.remedy)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first; within one level in the order in which the checks were made."""
    return sorted(findings, key=lambda finding: _LEVELS.index(finding.level))


def worst(findings: Iterable[Finding]) -> Level:
    return min((finding.level for finding in findings), key=_LEVELS.index, default="ok")


def exit_code(findings: Iterable[Finding]) -> int:
    """0 fine, 1 warnings, 2 cannot run."""
    return {"error": 2, "warning": 1}.get(worst(findings), 0)


def as_json(findings: list[Finding]) -> dict[str, Any]:
    return {
        "findings": [asdict(finding) for finding in findings],
        "worst": worst(findings),
        "exit_code": exit_code(findings),
    }
