"""What commands print: advice that can be followed as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.terminal import _GIVEN, as_given


@pytest.mark.parametrize(
    ("advice", "said"),
    [
        (
            "Run `penstock teardown` and `penstock setup`, then seed",
            "Run `penstock teardown --config 'a b'` and `penstock setup --config 'a b'`, then seed",
        ),
        ("Run: penstock reset counts", "Run: penstock reset --config 'a b' counts"),
        ("`penstock log consumers` tells", "`penstock log consumers --config 'a b'` tells"),
        ("Let `penstock init` write one", "Let `penstock init` write one"),
        ("ALTER PUBLICATION penstock ADD TABLE t", "ALTER PUBLICATION penstock ADD TABLE t"),
    ],
)
def test_commands_in_advice_get_the_configuration_that_was_given(advice: str, said: str) -> None:
    for given, expected in ((Path("a b"), said), (None, advice)):
        _GIVEN.set(given)
        assert as_given(advice) == expected
