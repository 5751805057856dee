"""The contract between capture and a way in: replication, or polling.

Capture opens one, identifies the server, starts it at the log's position, and reads and sends until
it ends. Everything behind it, the log above all, does not know which of the two it is.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from penstock.lsn import Lsn
from penstock.postgres.envelope import StatusUpdate
from penstock.postgres.system_identity import SystemIdentity


class SourceConnection(Protocol):
    """A connection that is open. One thread uses it; `wake` may be called from anywhere."""

    # Whether the last `read` took a step, and all that had come together for it.
    took_a_step: bool

    @property
    def server_pid(self) -> int:
        """The server's process that serves this connection."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def identify(self) -> SystemIdentity:
        """Which server this is; raises `SourceUnavailable` for a standby."""

    def timeline_history(self, timeline: int) -> str:
        """Which timelines the server was on before this one, and where it left each."""

    def start(self, slot: str, publication: str, start_lsn: Lsn, *, messages: bool = False) -> None:
        """Begin; transactions that end at or below `start_lsn` may still come.

        `messages`: ask for logical messages too, which any role may emit, of any size.
        """

    def read(self, timeout_s: float) -> list[memoryview]:
        """The CopyData messages that are there, in order; waits up to `timeout_s` for the first.

        Empty after the time-out or a `wake`. Raises the named error when the source has ended.
        """

    def pause(self, seconds: float) -> None:
        """Let messages come together, unread; a `wake` ends it."""

    def send(self, update: StatusUpdate) -> None:
        """Let the server know what is durable; it may forget that from now on."""

    def wake(self) -> None:
        """Make `read` return at once."""

    def end(self) -> None:
        """Leave cleanly, so that the server knows our last position and has freed the slot."""

    def close(self) -> None: ...
