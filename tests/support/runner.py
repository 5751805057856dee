"""Capture as a process of its own, to be killed: `python -m support.runner CONFIG`.

SIGTERM ends it cleanly, an error ends it with its name and code 2, as `penstock capture` does.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from penstock.capture.engine import Capture
from penstock.config import load
from penstock.errors import PenstockError


def main() -> int:
    capture = Capture(load(Path(sys.argv[1])))
    signal.signal(signal.SIGTERM, lambda *_: capture.stop())
    try:
        capture.run()
    except PenstockError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
