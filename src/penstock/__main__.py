"""Where the command starts. Imports as little as it can before signals are handled.

The libraries take a second to import, and a Ctrl-C in that second would show a traceback from deep
inside one of them.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

import penstock.beginning  # noqa: F401 - first: it looks at the clock


def _leave(number: int, _: FrameType | None) -> NoReturn:
    # Nothing has been begun, so there is nothing to tidy up; an exception could be swallowed.
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    from penstock.cli import main as run

    run()


if __name__ == "__main__":
    main()
