"""Rows of a table as they were read: some columns of each, and some of groups of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.columns import Mask
from penstock.decode.deltas import Input


@dataclass(frozen=True, slots=True)
class Rows:
    """A row has values of its own, and those that all rows of its group have."""

    count: int
    own: Mapping[Input, pa.Array]
    shared: Mapping[Input, pa.Array]
    # Of each row, the place of its group among what is shared.
    group: npt.NDArray[np.int64]
    # Which rows have a value that its type cannot hold.
    bad: Mapping[Input, Mask]

    def by_row(self, each: Input) -> pa.Array:
        if each in self.own:
            return self.own[each]
        return self.shared[each].take(pa.array(self.group))
