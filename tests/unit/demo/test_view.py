"""What the demo shows while the load runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.demo.view import view
from penstock.demo.watching import Seen

SEEN = Seen(
    3.2,
    1234,
    456.7,
    140.4,
    None,
    2**20,
    [("delivered", 9000), ("sent", 1)],
    [("Service 1", "Template 1.2", "email", "delivered", 4321)],
)


@pytest.mark.parametrize("terminal", [True, False])
def test_rate_freshness_lag_and_counts_are_shown(terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=160)
    with view(console) as shown:
        shown.show(SEEN)
    said = file.getvalue()
    for fact in ("1,234 changes", "457/s", "p50 140 ms p99 –", "slot 1.0 MiB behind"):
        assert fact in said
    if terminal:
        assert all(word in said for word in ("Service 1", "Template 1.2", "4,321"))
    else:
        assert "\x1b" not in said
        assert said.count("\n") == 1
        assert "delivered 9,000" in said
