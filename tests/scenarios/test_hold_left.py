"""Somebody who holds the log for a while is killed: what was held goes at the next look."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.changelog import consumers
from penstock.changelog.maintenance import prune
from penstock.changelog.settings import LogSettings, RetentionSettings
from penstock.changelog.storage import LocalStorage
from penstock.changelog.writer import LogWriter
from penstock.postgres.messages import Insert
from support import wire
from support.logs import IDENTITY, append_transaction

# With a budget that is reached: capture would wait for as long as the log is held.
FULL = RetentionSettings(min_age_s=0, max_bytes=2_000, on_full="wait")
ROWS = [Insert(wire.ITEMS.oid, (b"x" * 40,))] * 5

HOLDER = """
import sys
from pathlib import Path

from penstock.changelog import consumers
from penstock.changelog.reader import LogReader

log = LogReader(Path(sys.argv[1]))
with consumers.held(log.storage, "verify", str(log.identity.log_id), log.end().lsn):
    print("holding", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_held_is_removed(tmp_path: Path) -> None:  # M5.6
    storage = LocalStorage(tmp_path)
    with LogWriter(tmp_path, IDENTITY, LogSettings(segment_bytes=600, frame_bytes=300)) as writer:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with holder:
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == b"holding\n"
                for number in range(1, 21):
                    append_transaction(writer, 0x2000 + 16 * number, wire.ITEMS, *ROWS)
                held = prune(writer, FULL)
                assert (held.segments, held.full) == ((), True)
                assert len(consumers.consumers(storage)) == 1
            finally:
                holder.kill()
        assert len(consumers.consumers(storage)) == 1, "it could not say that it is gone"
        pruned = prune(writer, FULL)
        assert len(pruned.segments) > 5
        assert not pruned.full
    assert storage.names(consumers.FOLDER) == []
