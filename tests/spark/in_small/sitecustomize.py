"""Loaded by each Python that has this folder on its PYTHONPATH: what is large is small there.

SHARE_BYTES is what one task reads, MOST_IN_DRIVER how many rows the driver takes in one piece.
While GATE names a folder with a file `closed` in it, tasks that read changes from the log wait
there, and have said where they run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.changelog import planning, runs
from penstock.changelog.reader import LogReader

if "SHARE_BYTES" in os.environ:
    planning.SHARE_BYTES = int(os.environ["SHARE_BYTES"])
    planning.shares.__defaults__ = (planning.SHARE_BYTES,)

if "MOST_IN_DRIVER" in os.environ:
    from penstock.pipelines import staging

    staging.MOST_IN_DRIVER = int(os.environ["MOST_IN_DRIVER"])

if "GATE" in os.environ:
    gate = Path(os.environ["GATE"])
    read = runs.runs

    def read_behind_the_gate(reader: LogReader, share: runs.Share) -> Iterator[runs.Run]:
        # One that finds nothing lets the batch behind it come.
        frames = reader.frames(share.after, share.up_to)
        has_changes = any(frame.header.commits for frame in frames)
        if has_changes and (gate / "closed").exists():
            (gate / f"{os.getpid()}.waits").write_text(str(Path.cwd()))
        while has_changes and (gate / "closed").exists():
            time.sleep(0.05)
        yield from read(reader, share)

    runs.runs = read_behind_the_gate
