"""One part of `penstock run`, in its process: `python -m penstock.run.part NAME [CONFIG]`.

It logs what it does as lines of JSON on its standard error, and ends cleanly when a signal asks for
it, or when its standard input ends: then its supervisor is gone, however that came. A line on its
standard input means: drain. Then it ends as soon as it has done what there is to do.
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
    drain = threading.Event()
    threading.Thread(target=_heed_supervisor, args=(drain,), name="supervisor", daemon=True).start()
    try:
        loaded = configuration.load(None if config is None else Path(config))
        return _WORK[name](loaded, drain)
    except PenstockError as error:
        log_failure(error)
        return 2
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        log_failure(
            PenstockError(
                f"the system refuses: {error.strerror or error}{where}",
                remedy="Make room on that disk or fix its permissions; it is retried",
            ),
            transient=True,
        )
        return 2


def _heed_supervisor(drain: threading.Event) -> None:
    # Not through `sys.stdin`, whose lock Python wants at its own end.
    while os.read(0, 1):
        drain.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _capture(config: Config, _: threading.Event) -> int:
    return run_capture(config)


def _aggregates(config: Config, drain: threading.Event) -> int:
    # Spark is an extra, and slow to import.
    from penstock.pipelines.running import run_aggregates

    return run_aggregates(config, drain=drain)


_WORK = {CAPTURE: _capture, AGGREGATES: _aggregates}

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
