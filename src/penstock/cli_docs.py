"""`penstock docs`: a page of the documentation, or the list of pages."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.text import Text

from penstock.documentation import pages, title
from penstock.terminal import stdout


def docs(
    page: Annotated[
        str | None, typer.Argument(help="The page, such as roles. Without it: the list.")
    ] = None,
) -> None:
    """Print a page of the documentation."""
    found = pages()
    if page is None:
        for name, each in found.items():
            stdout.print(Text(f"{name:<16}{title(each)}"))
        return
    if (path := found.get(page.removesuffix(".md"))) is None:
        known = ", ".join(found)
        raise typer.BadParameter(f"there is no page {page!r}. Pages: {known}", param_hint="PAGE")
    text = path.read_text(encoding="utf-8")
    if stdout.is_terminal:
        stdout.print(Markdown(text), soft_wrap=False)
    else:
        stdout.print(Text(text), end="")
