"""How a benchmark says what it is doing: a line at a time, apart from its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str], None]
