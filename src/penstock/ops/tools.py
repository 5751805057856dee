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
from penstock.ops.findings import Finding

OLDEST_JAVA = 17
_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class ToolFacts:
    # The program's path, and its major version if it told one.
    java: str | None
    java_version: int | None
    pyspark_version: str | None


def read_tools(environ: Mapping[str, str] = os.environ) -> ToolFacts:
    """Java as Spark finds it: JAVA_HOME, then the PATH."""
    java = _find_java(environ)
    return ToolFacts(
        java=java,
        java_version=java_major(_ask_version(java)) if java else None,
        pyspark_version=_pyspark_version(),
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


def check_tools(tools: ToolFacts) -> Iterator[Finding]:
    why = "Pipelines run on Spark, which needs it; a host that only captures does not."
    yield _java(tools, why)
    yield _pyspark(tools, why)


def require_tools(tools: ToolFacts) -> None:
    """For commands that run Spark: raises `ToolMissing` where Java or PySpark will not do."""
    for finding in check_tools(tools):
        if finding.level != "ok":
            raise ToolMissing(finding.what, remedy=finding.fix)


def _java(tools: ToolFacts, why: str) -> Finding:
    fix = (
        f"apt-get install openjdk-{OLDEST_JAVA}-jre-headless, and let JAVA_HOME or the PATH name it"
    )
    if tools.java is None:
        return Finding("java", "warning", "Java", "Java is not installed", why, fix)
    if tools.java_version is None:
        what = f"{tools.java} does not run or does not tell its version"
        return Finding("java", "warning", "Java", what, why, fix)
    if tools.java_version < OLDEST_JAVA:
        what = f"{tools.java} is Java {tools.java_version}, and Spark 4 needs {OLDEST_JAVA}"
        return Finding("java", "warning", "Java", what, why, fix)
    return Finding("java", "ok", "Java", f"{tools.java} is Java {tools.java_version}")


def _pyspark(tools: ToolFacts, why: str) -> Finding:
    fix = "pip install 'penstock[spark]'"
    version = tools.pyspark_version
    if version is None:
        return Finding("pyspark", "warning", "PySpark", "PySpark is not installed", why, fix)
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if not [4, 2] <= numbers < [5]:
        what = f"PySpark is {version}, and Penstock needs >=4.2,<5"
        return Finding("pyspark", "warning", "PySpark", what, why, fix)
    return Finding("pyspark", "ok", "PySpark", f"PySpark is {version}")
