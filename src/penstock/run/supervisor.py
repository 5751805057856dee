"""Starts the parts, listens to what they say, starts again what dies, and ends them all.

When capture ends with an error that needs a person, aggregates are drained, and all of it ends with
that error: what watches `penstock run` sees that it is down.

Nothing is left whatever happens: a part ends by itself when the pipe to its input breaks, so also
when the supervisor is killed. Until then each holds the lock that this one took, so that a second
supervisor waits for them.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from penstock.changelog.storage import LocalStorage
from penstock.errors import LogInUse, LogUnwritable
from penstock.interrupts import Interrupts
from penstock.run.lifecycle import Lifecycle, PartFailed
from penstock.run.milestones import Milestones
from penstock.run.part import AGGREGATES, CAPTURE
from penstock.words import duration

_LOG = structlog.get_logger()
# Not seen by who looks whether the directory is empty.
_LOCK = ".run.lock"
# A batch that is being applied may commit; what takes longer is rolled back.
_STOP_S = 15.0
# Parts of a supervisor that was killed notice at once, and then take as long as any.
_LOCK_S = _STOP_S
# Whoever waits longer than this is told for what.
_QUIET_S = 1.0
_LAST_WORDS_S = 2.0
_NEVER_S = 3600.0
# Safe (-P): what lies in the folder it is started from is no module of ours.
_PROGRAM = (sys.executable, "-P", "-m", "penstock.run.part")

Event = Mapping[str, Any]
Watcher = Callable[[str, Event], None]


@dataclass(frozen=True, slots=True)
class _Line:
    part: str
    text: str


@dataclass(frozen=True, slots=True)
class _Ended:
    part: str
    code: int


class Supervisor:
    """Runs until it is interrupted, or capture has ended with an error that needs a person."""

    def __init__(
        self,
        config: Path | None,
        log: Path,
        *,
        aggregates: bool,
        keep_going: bool = False,
        watch: Watcher = lambda _part, _event: None,
        program: Sequence[str] = _PROGRAM,
        environ: Mapping[str, str] = os.environ,
        started: float | None = None,
    ) -> None:
        """`watch` is given all that parts say, in their order; `program` runs one of them.

        `keep_going`: capture that has followed once is retried after every error.

        `started`: when it all began, by the monotonic clock.
        """
        self._program = program
        self._environ = environ
        self._config = config
        self._storage = LocalStorage(log)
        self._keep_going = keep_going
        # Why everything ends as soon as the aggregates are drained.
        self._failure: PartFailed | None = None
        self._watch = watch
        self._parts = {CAPTURE: Lifecycle(CAPTURE)}
        if aggregates:
            self._parts[AGGREGATES] = Lifecycle(AGGREGATES)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._listeners: list[threading.Thread] = []
        # None: look around.
        self._news: queue.SimpleQueue[_Line | _Ended | None] = queue.SimpleQueue()
        self._stopping = False
        self._told: dict[str, str] = {}
        self._milestones = Milestones(time.monotonic() if started is None else started)

    def states(self) -> dict[str, str]:
        return {name: part.state for name, part in self._parts.items()}

    def stop(self) -> None:
        """From another thread: let `run` end."""
        self._stopping = True
        self._news.put(None)

    def run(self, interrupts: Interrupts) -> None:
        """Run until `stop` or an interrupt; all parts have ended then.

        Raises the error of a capture that needs a person.
        """
        with _alone(self._storage, interrupts) as lock:
            try:
                while not self._stopping:
                    self._start_due(lock)
                    self._tell_states()
                    self._report_down()
                    with suppress(queue.Empty):
                        with interrupts.heeded():
                            news = self._news.get(timeout=self._until_due_s())
                        self._heard(news)
            finally:
                self._end()

    def _tell_states(self) -> None:
        if (states := self.states()) != self._told:
            _LOG.info("state", **states)
            self._told = states

    def _report_down(self) -> None:
        """Log a state that lasts again, at a slow pace and with its age."""
        now = time.monotonic()
        for name, part in self._parts.items():
            if (down_s := part.down_s(now)) is not None:
                facts = {}
                if (failure := part.last_failure) is not None:
                    facts = {"problem": failure.problem, "remedy": failure.remedy}
                _LOG.warning(
                    "not running", part=name, state=part.state, down_for=duration(down_s), **facts
                )

    def _start_due(self, lock: int) -> None:
        now = time.monotonic()
        for name, part in self._parts.items():
            if part.state not in ("waiting", "pausing") or part.due > now:
                continue
            # It reads the log, which capture begins.
            if name == AGGREGATES and not self._parts[CAPTURE].has_run:
                continue
            self._start(part, lock)

    def _until_due_s(self) -> float:
        due = [part.due for part in self._parts.values() if part.state == "pausing"]
        due += [part.report_at for part in self._parts.values() if part.report_at is not None]
        return max(0.0, min(due, default=time.monotonic() + _NEVER_S) - time.monotonic())

    def _start(self, part: Lifecycle, lock: int) -> None:
        command = [*self._program, part.name]
        if self._config is not None:
            command.append(str(self._config))
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._environ,
                pass_fds=[lock],
                # A terminal's Ctrl-C is for the supervisor.
                start_new_session=True,
            )
        except OSError as error:  # no memory or no process left, for the moment
            self._pause(part, f"not started: {error.strerror}")
            return
        self._processes[part.name] = process
        part.started()
        _LOG.info("started", part=part.name, pid=process.pid)
        listener = threading.Thread(
            target=self._listen, args=(part.name, process), name=f"{part.name} says", daemon=True
        )
        listener.start()
        self._listeners = [each for each in (*self._listeners, listener) if each.is_alive()]

    def _listen(self, part: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        with process:  # whose pipes are closed at its end
            for line in process.stderr:
                self._news.put(_Line(part, line.decode(errors="replace").rstrip()))
            code = process.wait()
        self._news.put(_Ended(part, code))

    def _heard(self, news: _Line | _Ended | None) -> None:
        if news is None:
            return
        part = self._parts[news.part]
        now = time.monotonic()
        if isinstance(news, _Ended):
            self._ended(part, news.code)
            return
        event = _event(news.text)
        _tell(part.name, event)
        part.said(event, now)
        if account := self._milestones.said(part.name, event, now):
            _LOG.info(account)
        self._watch(part.name, event)

    def _ended(self, part: Lifecycle, code: int) -> None:
        if part.name == AGGREGATES and self._failure is not None:
            raise self._failure
        failure = part.failure
        if part.name == CAPTURE and failure is not None and self._is_final(part, failure):
            part.failed()
            self._drain(failure)
            return
        self._pause(part, _how(code))

    def _is_final(self, capture: Lifecycle, failure: PartFailed) -> bool:
        """What is wrong at the start stays wrong, and so does what needs a person.

        Errors of aggregates never are: capture goes on, so that the server is not held back.
        """
        return not capture.has_run or not (failure.transient or self._keep_going)

    def _drain(self, failure: PartFailed) -> None:
        """Let aggregates apply what is in the log, and end; then everything ends."""
        process = self._processes.get(AGGREGATES)
        if process is None or self._parts[AGGREGATES].state == "pausing":
            raise failure
        self._failure = failure
        _LOG.warning("ending: aggregates apply what is in the log first")
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(OSError, ValueError):  # it has just ended, which is heard next
            process.stdin.write(b"\n")
            process.stdin.flush()

    def _pause(self, part: Lifecycle, how: str) -> None:
        pause_s = part.ended(time.monotonic())
        _LOG.warning("ended", part=part.name, how=how, again_in_s=round(pause_s, 1))

    def _end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        for name, process in self._processes.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _LOG.warning("does not end, killed", part=name)
                process.kill()
                process.wait()
        # Their last words. Somebody whom a part started and did not end might keep the pipe open.
        for listener in self._listeners:
            listener.join(_LAST_WORDS_S)
        with suppress(queue.Empty):
            while True:
                news = self._news.get_nowait()
                if isinstance(news, _Line):
                    _tell(news.part, _event(news.text))


@contextmanager
def _alone(storage: LocalStorage, interrupts: Interrupts) -> Iterator[int]:
    begun = time.monotonic()
    told = False
    while True:
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(storage.held(_LOCK))
            except OSError as error:
                raise LogUnwritable(str(storage.root), error.strerror or str(error)) from error
            if lock is not None:
                yield lock
                return
        waited_s = time.monotonic() - begun
        if waited_s > _LOCK_S:
            raise LogInUse(
                f"another penstock run works on the change log in {storage.root}",
                remedy="Stop it first, or give this one a configuration with another log and slot",
                path=str(storage.root),
            )
        if waited_s > _QUIET_S and not told:
            _LOG.info("waiting for another penstock run, or what a killed one left, to end")
            told = True
        with interrupts.heeded():
            time.sleep(0.1)


def _event(line: str) -> Event:
    """What a part says; a line that is none of its log (Python's own, a crash) is as it is."""
    with suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and "event" in found:
            return found
    return {"event": line, "level": "warning"}


def _tell(part: str, event: Event) -> None:
    facts = {name: value for name, value in event.items() if name not in ("event", "level")}
    level = logging.getLevelNamesMapping().get(str(event.get("level", "info")).upper())
    _LOG.log(level or logging.INFO, event["event"], part=part, **facts)


def _how(code: int) -> str:
    with suppress(ValueError):  # some signals have no name
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
