"""One part of `penstock run`, in its process: `python -m penstock.run.part NAME [CONFIG]`.

It says what it does in lines of JSON on its standard error, and ends cleanly when it is told to, or
when its standard input ends: then its supervisor is gone, however that came.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from penstock import config as configuration
from penstock.capture.service import run_capture
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.logs import configure_logs, log_failure

CAPTURE, AGGREGATES = "capture", "aggregates"


def main(name: str, config: str | None = None) -> int:
    configure_logs(as_json=True)
    threading.Thread(target=_end_with_supervisor, name="supervisor", daemon=True).start()
    try:
        loaded = configuration.load(None if config is None else Path(config))
        _WORK[name](loaded)
    except PenstockError as error:
        log_failure(error)
        return 2
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        log_failure(
            PenstockError(
                f"the system refuses: {error.strerror or error}{where}",
                remedy="Make room on that disk or mend its permissions; it is tried again",
            )
        )
        return 2
    return 0


def _end_with_supervisor() -> None:
    # It writes nothing. Not through `sys.stdin`, whose lock Python wants at its own end.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _aggregates(config: Config) -> None:
    # Spark is an extra, and slow to import.
    from penstock.pipelines.running import run_aggregates

    run_aggregates(config)


_WORK = {CAPTURE: run_capture, AGGREGATES: _aggregates}

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
