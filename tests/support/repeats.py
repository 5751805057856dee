"""How often a fault is repeated: a few times by default, many with PENSTOCK_SOAK=1."""

from __future__ import annotations

import os

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"


def repeats(usually: int, *, soak: int) -> int:
    return soak if SOAK else usually
