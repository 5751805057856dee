"""The file that says how far a log may be read, and which segments there are."""

from __future__ import annotations

from penstock.changelog.format import FormatError, Head
from penstock.changelog.storage import Storage

HEAD = "head"


def read_head(storage: Storage) -> Head | None:
    """The head, or None if it is not there or not whole."""
    try:
        return Head.unpack(storage.read(HEAD))
    except (FileNotFoundError, FormatError):
        return None
