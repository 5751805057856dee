"""Capture in a thread of the test, with an end that is always seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from penstock.capture.engine import Capture
from penstock.config import Config
from penstock.postgres.session import ReplicationSession
from support.waiting import eventually
from support.workload import PUBLICATION, SLOT

# Quick, so that nobody waits; the server's timeout stays long enough for a busy machine.
_SOURCE: dict[str, Any] = {"keepalive_interval_s": 0.1, "wal_sender_timeout_s": 20.0}
_POLL: dict[str, Any] = {"interval_s": 0.05}


def capture_config(
    dsn: str,
    path: Path,
    *,
    stale_timeout_s: float = 600.0,
    log: Mapping[str, Any] | None = None,
    poll: Mapping[str, Any] | None = None,
    **source: Any,
) -> Config:
    """`log`: settings of [log] besides the path; `poll`: of [poll]; the others are of [source]."""
    return Config.model_validate(
        {
            "source": {
                "dsn": dsn,
                "slot": SLOT,
                "publication": PUBLICATION,
                "tables": ["items"],
                **_SOURCE,
                **source,
            },
            "poll": {**_POLL, **(poll or {})},
            "heartbeat": {"interval_min": 0, "timeout_min": stale_timeout_s / 60},
            "log": {"path": path, **(log or {})},
        }
    )


class RunningCapture:
    """A capture that runs until `stop`, or until it fails."""

    def __init__(self, config: Config, said: list[MutableMapping[str, Any]]) -> None:
        self.capture = Capture(config)
        # What it wrote to the program's log.
        self.said = said
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="capture")
        self._thread.start()

    @property
    def connections(self) -> int:
        return self.capture.connections

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def pauses(self) -> list[float]:
        """How long it waited before each attempt to connect again."""
        return [entry["pause_s"] for entry in self.said if entry["event"] == "reconnecting"]

    def reasons(self) -> list[str]:
        """Why it had to connect again, each time."""
        return [entry["reason"] for entry in self.said if entry["event"] == "reconnecting"]

    def session(self) -> ReplicationSession:
        """The session, once there is one."""
        self.connected()
        session = self.capture.session
        assert session is not None
        return session

    def connected(self, times: int = 1, *, within_s: float = 15.0) -> None:
        """Wait until it has connected so often."""
        eventually(
            lambda: (self.capture.session and self.connections >= times) or self._ended(),
            f"{times} connections of capture",
            within_s=within_s,
        )

    def stop(self) -> float:
        """Stop it as a signal would; returns how long it took, and raises what capture raised."""
        asked = time.monotonic()
        self.capture.stop()
        self._thread.join(20)
        assert not self.running, "capture does not stop"
        took = time.monotonic() - asked
        self._ended()
        return took

    def failure(self, *, within_s: float = 15.0) -> BaseException:
        """What ended it, which must be an error."""
        self._thread.join(within_s)
        assert not self.running, "capture goes on"
        error, self._error = self._error, None
        assert error is not None, "capture ended without an error"
        return error

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self._error = error

    def _ended(self) -> bool:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return False


@contextmanager
def capturing(config: Config) -> Iterator[RunningCapture]:
    """Run capture beside the block; an error that the block did not take fails the test."""
    with capture_logs() as said:
        running = RunningCapture(config, said)
        try:
            yield running
        finally:
            running.stop()
