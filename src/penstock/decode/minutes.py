"""Moments without what is less than a minute. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MINUTE = timedelta(minutes=1) // _MICROSECOND
# Until 1972, some places had clocks that were not whole minutes off from others: there a day may
# begin within a minute of UTC.
EXACT_BEFORE = datetime(1973, 1, 1, tzinfo=UTC)
_FROM = (EXACT_BEFORE - _UNIX) // _MICROSECOND


def minutes(moments: pa.Array) -> pa.Array:
    """Those from `EXACT_BEFORE` on; earlier ones as they are."""
    micros = moments.cast(pa.int64())
    whole = pc.multiply(pc.divide(micros, _MINUTE), _MINUTE)
    return pc.if_else(pc.less(micros, _FROM), micros, whole).cast(moments.type)
