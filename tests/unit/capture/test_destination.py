"""Direct or buffered: the one decision."""

from __future__ import annotations

import pytest

from penstock.capture.destination import fragment_direct


# M3.6
@pytest.mark.parametrize(
    ("hides_uncommitted", "filtering_snapshot", "direct"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_fragments_go_direct_only_where_they_stay_hidden_and_nothing_is_filtered(
    hides_uncommitted: bool, filtering_snapshot: bool, direct: bool
) -> None:
    found = fragment_direct(
        hides_uncommitted=hides_uncommitted, filtering_snapshot=filtering_snapshot
    )
    assert found is direct
