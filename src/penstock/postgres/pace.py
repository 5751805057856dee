"""How a reader of a socket keeps pace: as messages come, or in steps where very much comes. Pure.

A walsender sends message by message. Where both ends are on one machine, how many of them the
kernel puts into a packet is for the reader to decide, and packets are a third of what a change
costs the server (decision 14).
"""

from __future__ import annotations

# Not to be seen behind a backlog, and long enough that most of what the server sends meanwhile
# waits on its side, where it is packed together.
STEP_S = 0.02
# More than this in a step is a backlog: some 40,000 small changes a second.
_BACKLOG_BYTES = 2**17


class Pace:
    """Told after each read what it brought."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._bytes = 0
        self.is_much = False

    def received(self, size: int, now: float) -> None:
        self._bytes += size
        passed_s = now - self._since
        if passed_s >= STEP_S:
            self.is_much = self._bytes * STEP_S >= _BACKLOG_BYTES * passed_s
            self._since, self._bytes = now, 0
