"""Loaded by each Python that has this folder on its PYTHONPATH: what is large is small there.

SHARE_BYTES is what one task reads, MOST_IN_DRIVER how many rows the driver takes in one piece.
While GATE names a folder with a file `closed` in it, tasks wait there, and have said where they
run: those that read changes from the log if the file says `reading`, and with `staging` those that
write what came of them, in the midst of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.changelog import planning, runs
from penstock.changelog.reader import LogReader

if "SHARE_BYTES" in os.environ:
    planning.SHARE_BYTES = int(os.environ["SHARE_BYTES"])
    planning.shares.__defaults__ = (planning.SHARE_BYTES,)

if "MOST_IN_DRIVER" in os.environ:
    from penstock.pipelines import staging

    staging.MOST_IN_DRIVER = int(os.environ["MOST_IN_DRIVER"])

if "GATE" in os.environ:
    from penstock.pipelines import staging

    closed = Path(os.environ["GATE"]) / "closed"
    read, put = runs.runs, staging.put

    def wait_at_the_gate(kind: str) -> None:
        if is_closed_for(kind):
            closed.with_name(f"{os.getpid()}.waits").write_text(str(Path.cwd()))
        while is_closed_for(kind):
            time.sleep(0.05)

    def is_closed_for(kind: str) -> bool:
        with suppress(FileNotFoundError):
            return closed.read_text() == kind
        return False

    def read_behind_the_gate(reader: LogReader, share: runs.Share) -> Iterator[runs.Run]:
        # One that finds nothing lets the batch behind it come.
        frames = reader.frames(share.after, share.up_to)
        if any(frame.header.commits for frame in frames):
            wait_at_the_gate("reading")
        yield from read(reader, share)

    def put_behind_the_gate(
        connection: Any, aggregate: str, tables: Iterable[Any], width: int
    ) -> tuple[staging.Part, ...]:
        def slowly() -> Iterator[Any]:
            for table in tables:
                yield table
                wait_at_the_gate("staging")

        return put(connection, aggregate, slowly(), width)

    runs.runs = read_behind_the_gate
    staging.put = put_behind_the_gate
