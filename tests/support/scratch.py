"""Where tests keep their files: in memory, if there is enough.

They make and drop a thousand databases, and time how processes end, not how disks do. What must be
durable is told by processes that are killed: they lose nothing in a file system in memory.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
# What a run leaves lying about, and the machine's own needs.
_ROOM_BYTES = 8 * 2**30
_FREE_BYTES = 10 * 2**30


def use_memory() -> None:
    """For this process and all that it starts, unless somebody has said where."""
    if "TMPDIR" not in os.environ and _is_usable(_MEMORY) and _available() > _FREE_BYTES:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None


def _is_usable(directory: Path) -> bool:
    if not os.access(directory, os.W_OK | os.X_OK):
        return False
    facts = os.statvfs(directory)
    # Java unpacks libraries there.
    is_executable = not facts.f_flag & os.ST_NOEXEC
    return is_executable and facts.f_bavail * facts.f_frsize > _ROOM_BYTES


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return int(kilobytes) * 1024
