"""The SQL in a message, as a person would copy it from there."""

from __future__ import annotations

import re

_STATEMENT = r"\b(?:DO|ALTER|CREATE|GRANT|DROP|SELECT|DELETE) .*"


def statements_of(text: str) -> list[str]:
    """The statements on lines of their own; without any, the one that ends the first line."""
    lines = text.splitlines()
    own = [line.strip()[:-1] for line in lines if line.startswith("  ") and line.endswith(";")]
    if own:
        return own
    found = re.search(_STATEMENT, lines[0])
    assert found is not None, text
    return [found[0]]
