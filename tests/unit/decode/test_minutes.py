"""Moments by the minute, and which are left as they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.decode.minutes import EXACT_BEFORE, minutes

KINDS = [pa.timestamp("us"), pa.timestamp("us", "UTC")]
_MOMENT = timedelta(microseconds=1)
moments = st.none() | st.datetimes()


def by_minute(moment: datetime | None) -> datetime | None:
    if moment is None or moment.replace(tzinfo=UTC) < EXACT_BEFORE:
        return moment
    return moment.replace(second=0, microsecond=0)


@given(rows=st.lists(moments), kind=st.sampled_from(KINDS))
def test_a_moment_loses_what_is_less_than_a_minute(
    rows: list[datetime | None], kind: pa.DataType
) -> None:  # M5.2
    found = minutes(pa.array(rows, pa.timestamp("us")).cast(kind))
    assert found.type == kind
    assert found.cast(pa.timestamp("us")).to_pylist() == [by_minute(each) for each in rows]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_moments_of_other_times_are_exact(kind: pa.DataType) -> None:  # M5.2
    first = EXACT_BEFORE.replace(tzinfo=None)
    rows = [first - _MOMENT, first, first + _MOMENT]
    found = minutes(pa.array(rows, pa.timestamp("us")).cast(kind))
    assert found.cast(pa.timestamp("us")).to_pylist() == [first - _MOMENT, first, first]
