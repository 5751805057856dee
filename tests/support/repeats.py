"""How often a fault is repeated: a few times by default, many with PENSTOCK_SOAK=1."""

from __future__ import annotations

import os
from typing import TypeVar

N = TypeVar("N", int, float)

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"


def repeats(usually: N, *, soak: N) -> N:
    return soak if SOAK else usually
