"""The programs on this machine that the pipeline needs: Java and PySpark. Capture needs neither."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ToolMissing
from penstock.ops.findings import Finding, Level

OLDEST_JAVA = 17
_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class ToolFacts:
    # The program's path, and its major version if it told one.
    java: str | None
    java_version: int | None
    pyspark_version: str | None
    # What JAVA_HOME says, by which the program was found; None: it was looked for in the PATH.
    java_home: str | None = None


def read_tools(environ: Mapping[str, str] = os.environ) -> ToolFacts:
    """Java as Spark finds it: JAVA_HOME, then the PATH."""
    java = _find_java(environ)
    return ToolFacts(
        java=java,
        java_version=java_major(_ask_version(java)) if java else None,
        pyspark_version=_pyspark_version(),
        java_home=environ.get("JAVA_HOME") or None,
    )


def _find_java(environ: Mapping[str, str]) -> str | None:
    if home := environ.get("JAVA_HOME"):
        return str(Path(home) / "bin" / "java")
    return shutil.which("java", path=environ.get("PATH"))


def _ask_version(java: str) -> str:
    try:
        done = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr or done.stdout


def java_major(text: str) -> int | None:
    """The major version in the output of `java -version`.

    >>> java_major('openjdk version "17.0.15" 2025-04-15'), java_major('java version "1.8.0_402"')
    (17, 8)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _pyspark_version(version: Callable[[str], str] = importlib.metadata.version) -> str | None:
    try:
        return version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_tools(tools: ToolFacts, *, needed: bool) -> Iterator[Finding]:
    """`needed`: there are aggregates, which cannot run without them."""
    why = "Aggregates run on Spark, which needs it; capture alone does not."
    level: Level = "error" if needed else "warning"
    yield _java(tools, level, why)
    yield _pyspark(tools, level, why)


def require_tools(tools: ToolFacts) -> None:
    """For commands that run Spark: raises `ToolMissing` where Java or PySpark will not do."""
    for finding in check_tools(tools, needed=True):
        if finding.level != "ok":
            raise ToolMissing(finding.what, remedy=finding.fix)


def _java(tools: ToolFacts, level: Level, why: str) -> Finding:
    fix = (
        f"apt-get install openjdk-{OLDEST_JAVA}-jre-headless, and let JAVA_HOME or the PATH name it"
    )
    named = ""
    if tools.java_home is not None:
        fix = (
            f"Let JAVA_HOME lead to Java {OLDEST_JAVA} or newer, or unset it if the PATH has one. "
            f"Where there is none: {fix}"
        )
        named = f"JAVA_HOME is {tools.java_home}, and "
    if tools.java is None:
        return Finding("java", level, "Java", "Java is not installed", why, fix)
    if tools.java_version is None:
        what = f"{named}{tools.java} does not run or does not tell its version"
        return Finding("java", level, "Java", what, why, fix)
    if tools.java_version < OLDEST_JAVA:
        what = f"{tools.java} is Java {tools.java_version}, and Spark 4 needs {OLDEST_JAVA}"
        return Finding("java", level, "Java", what, why, fix)
    return Finding("java", "ok", "Java", f"{tools.java} is Java {tools.java_version}")


def _pyspark(tools: ToolFacts, level: Level, why: str) -> Finding:
    fix = "pip install 'penstock[spark]'"
    version = tools.pyspark_version
    if version is None:
        return Finding("pyspark", level, "PySpark", "PySpark is not installed", why, fix)
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if not [4, 2] <= numbers < [5]:
        what = f"PySpark is {version}, and Penstock needs >=4.2,<5"
        return Finding("pyspark", level, "PySpark", what, why, fix)
    return Finding("pyspark", "ok", "PySpark", f"PySpark is {version}")
