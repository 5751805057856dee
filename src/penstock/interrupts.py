"""Ctrl-C and its like, raised only where nothing can be lost. Shared word: imports nothing local.

Python raises KeyboardInterrupt between any two instructions: also after a process was started and
before anybody noted its number, or in the midst of tidying up. Inside `Interrupts` a signal is only
noted, and is raised where the code says that it may be:

    with Interrupts() as interrupts, ExitStack() as stack:
        process = Popen(...)
        stack.callback(stop, process)
        with interrupts.heeded():
            process.wait()

What is noted and not raised by the end is raised then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

# Windows has no SIGHUP.
_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
T = TypeVar("T")
_Handler = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Holds the signals that end a program; may be nested, and does nothing outside main."""

    def __init__(self) -> None:
        self._before: dict[int, _Handler | signal.Handlers] = {}
        # Else a signal goes straight on: nobody would look at what is noted.
        self._holding = False
        self._noted: int | None = None
        self._heeded = False

    def __enter__(self) -> Self:
        # Python runs signal handlers in the main thread only, and lets no other one set them.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                # One that is ignored (`nohup`) stays so, and what is not Python's is not ours.
                if before is not None and before != signal.SIG_IGN:
                    self._before[number] = before  # type: ignore[assignment]  # int: SIG_* only
                    signal.signal(number, self._note)
        # Last, and given up first: a signal in between may leave some handlers as ours for good.
        self._holding = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._holding = False
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._noted is not None and not isinstance(error, KeyboardInterrupt):
            self._pass_on(self._noted, None)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Here a signal may be raised, at most once; one that was noted before is raised now.

        May be nested: at the end of the inner block it is as before.
        """
        before, self._heeded = self._heeded, True
        try:
            if self._noted is not None:
                self._raise(self._noted, None)
            yield
        except BaseException:
            # What follows is tidying up.
            self._heeded = False
            raise
        self._heeded = before

    def aside(self, work: Callable[[], T]) -> T:
        """Do `work` in another thread and heed signals meanwhile: it is not cut, but left alone.

        For libraries that do not bear an exception at any point, or that set signal handlers. Who
        calls this makes abandoned work come to its end.
        """
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again by who waits
                done.set_exception(error)

        threading.Thread(target=run, name="aside", daemon=True).start()
        with self.heeded():
            return done.result()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._holding:
            self._pass_on(number, frame)
            return
        self._noted = number
        if self._heeded:
            self._raise(number, frame)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        # Not again before the next `heeded`: what follows the first is tidying up.
        self._heeded = False
        self._pass_on(number, frame)
        # An outer one did not want it now.
        self._noted = None
        self._heeded = True

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = self._before[number]
        if callable(before) and not isinstance(before, signal.Handlers):
            before(number, frame)
        else:
            raise KeyboardInterrupt
