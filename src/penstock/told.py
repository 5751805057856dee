"""Errors that come again, in a log that people read: once in full, then in a line. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

# What an event says of an error, in the order of reading.
TEXTS = ("problem", "reason", "remedy")
# As long as a line should be; what is no longer than that is told as it is.
_LINE_CHARS = 100
# Who looks at the end of a long log should find it in full.
_AGAIN_AFTER_S = 600.0
# Longer than any pause between tries: it had gone, and is back.
_GONE_AFTER_S = 120.0


class Told:
    """Asked for each event, by what it should be told."""

    def __init__(self) -> None:
        # By who says it: in which words, when they were told in full, and when they came last.
        self._last: dict[tuple[Any, ...], tuple[str, float, float]] = {}

    def shortened(self, event: Mapping[str, Any], now: float) -> dict[str, Any]:
        """The same, or what is still wrong on one line if it was told in full a while ago."""
        told = dict(event)
        texts = [str(told[name]) for name in TEXTS if name in told]
        words = " ".join(texts)
        if len(words) <= _LINE_CHARS and "\n" not in words:
            return told
        who = tuple(told.get(name) for name in ("event", "part", "aggregate"))
        before, in_full, last = self._last.get(who, ("", now, now))
        if words != before or now - in_full >= _AGAIN_AFTER_S or now - last >= _GONE_AFTER_S:
            self._last[who] = (words, now, now)
            return told
        self._last[who] = (words, in_full, now)
        for name in TEXTS:
            told.pop(name, None)
        summary = textwrap.shorten(texts[0], _LINE_CHARS, placeholder=" …")
        return {**told, "still": f"{summary} (told above)"}
