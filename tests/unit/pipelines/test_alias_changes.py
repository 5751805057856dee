"""DDL that changes what aliases stand for in rows that are there. M4.6"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.decode.stops import StopCode
from penstock.pipelines.alias_changes import alias_stops
from penstock.postgres.tables import Column
from support.aggregates import by_status
from support.facts import column, table

ALIASES = {"status": ["new", "old", "older"]}


def nullable(name: str, **changes: Any) -> Column:
    return column(name, not_null=False, **changes)


FILLED, GONE = StopCode.ALIAS_FILLED, StopCode.ALIAS_GONE


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        # A column that is added empty, and what follows in a careful migration.
        ({"old": 2}, {"old": 2, "new": 5}, []),
        ({"old": 2, "new": 5}, {"new": 5}, [(GONE, "old")]),
        ({"old": 2, "new": 5}, {"new!": 5}, []),
        # A rename is the same column.
        ({"old": 2}, {"new": 2}, []),
        ({"new": 2}, {"old": 2}, []),
        # Added with values.
        ({"old": 2}, {"old": 2, "new=": 5}, [(FILLED, "new")]),
        ({"old": 2}, {"old": 2, "new(": 5}, [(FILLED, "new")]),
        # Filled, and then made NOT NULL, before anybody looked.
        ({"old": 2}, {"old": 2, "new!": 5}, []),
        # Behind one that is never NULL nothing counts.
        ({"new": 2}, {"new!": 2, "old=": 5}, []),
        ({"new": 2}, {"new": 2, "old=": 5}, [(FILLED, "old")]),
        ({"new": 2, "old": 3, "older": 4}, {"new!": 2}, []),
        ({"new": 2, "old": 3, "older": 4}, {"new": 2, "old!": 3}, []),
        ({"new": 2, "old": 3, "older": 4}, {"old!": 3}, [(GONE, "new")]),
        # None is left; and nothing is known of one that was not noted.
        ({"old": 2}, {}, [(StopCode.COLUMN_GONE, "old")]),
        ({"old": 2, "older": 3}, {}, [(StopCode.COLUMN_GONE, "old")]),
        ({}, {"new!": 2}, []),
    ],
)
def test_only_what_cannot_have_changed_a_row_goes_on(
    before: dict[str, int], now: dict[str, int], expected: list[tuple[StopCode, str]]
) -> None:
    """`!` is NOT NULL, `=` was added with a default, `(` has a function as its default."""
    facts = table(
        "notes",
        columns=(
            column("id"),
            *(
                column(name[:-1])
                if name.endswith("!")
                else nullable(
                    name.rstrip("=("),
                    prefilled=name.endswith("="),
                    default="f()" if name.endswith("(") else None,
                )
                for name in now
            ),
        ),
    )
    one = by_status(sources=[{"table": "notes", "aliases": ALIASES}])
    numbers = {name.rstrip("!=("): number for name, number in now.items()}
    found = list(alias_stops(one, one.sources[0], before, numbers, facts))
    assert [(stop.code, stop.column) for stop in found] == expected
    for stop in found:
        assert stop.column in stop.problem("counts")
        assert "penstock reset counts" in stop.remedy("counts")


def test_a_column_without_aliases_stops_only_when_it_is_gone() -> None:
    """Else it might be added again, with other values, before the next look."""
    one = by_status(sources=["notes"])
    facts = table("notes", columns=(column("id"),))
    (stop,) = alias_stops(one, one.sources[0], {"status": 2}, {}, facts)
    assert (stop.code, stop.column) == (StopCode.COLUMN_GONE, "status")
    assert list(alias_stops(one, one.sources[0], {}, {}, facts)) == []
    assert list(alias_stops(one, one.sources[0], {"status": 2}, {"status": 3}, facts)) == []
