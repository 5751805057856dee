"""A service that gives up soon what it tries again only briefly: in a test, or as a process.

As a process, with the arguments of `penstock`: python -m support.impatient capture -c FILE
"""

from __future__ import annotations

from unittest.mock import patch

from penstock.__main__ import main
from penstock.backoff import Backoff
from penstock.capture import engine
from penstock.capture.policy import Patience
from penstock.run import supervisor


class Impatient(Patience):
    """Gives up after half a second what is tried again only briefly."""

    def __init__(self, *, wal_sender_timeout_s: float, backoff: Backoff | None = None) -> None:
        super().__init__(wal_sender_timeout_s=wal_sender_timeout_s, backoff=backoff)
        self._brief_s = 0.5


if __name__ == "__main__":
    with (
        patch.object(engine, "Patience", Impatient),
        # Longer than it waits in silence.
        patch.object(supervisor, "_LOCK_S", 1.5),
    ):
        main()
