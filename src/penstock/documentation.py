"""The documentation that comes with the package, page by page: what `penstock docs` prints.

A wheel has the pages beside this file; a source tree, also one that is installed as editable, has
them in its own `docs`.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_PLACES = (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs")


def pages() -> dict[str, Path]:
    """Return the pages by name, in the order of their names."""
    folder = next((place for place in _PLACES if place.is_dir()), _PLACES[0])
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def title(page: Path) -> str:
    """Return the text of a page's first heading."""
    with page.open(encoding="utf-8") as lines:
        return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")
