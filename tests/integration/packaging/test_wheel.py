"""What a user installs has the documentation that messages name."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.documentation import pages

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of a wheel, which is built as a release builds it."""
    made = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    options = ["--no-index", "--disable-pip-version-check", "--wheel-dir", str(made), str(ROOT)]
    subprocess.run([*build, *options], check=True, timeout=120)
    (wheel,) = made.glob("penstock-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(made / "site")
    return made / "site"


def docs(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`penstock docs` of that package, far from this source tree."""
    command = [sys.executable, "-c", "from penstock.__main__ import main; main()", "docs", *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=installed,
        env={"PYTHONPATH": str(installed), "PATH": ""},
    )


def test_every_page_can_be_read_where_only_the_wheel_is(installed: Path) -> None:
    listed = docs(installed).stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(pages())
    for name, page in pages().items():
        assert (installed / "penstock" / "docs" / f"{name}.md").read_text() == page.read_text()
    shown = docs(installed, "roles")
    assert (shown.returncode, shown.stdout.strip()) == (0, pages()["roles"].read_text().strip())
