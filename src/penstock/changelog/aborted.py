"""Which changes belong to subtransactions that were rolled back. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def is_aborted(
    xids: npt.NDArray[np.uint32], aborted: npt.NDArray[np.uint32]
) -> npt.NDArray[np.bool_]:
    """Return for each xid whether it is in `aborted`, which is sorted.

    A transaction may have hundreds of thousands of them and as many fragments: the list must not be
    gone through for each fragment, as `np.isin` does.
    """
    if not len(aborted):
        return np.zeros(len(xids), bool)
    found = np.searchsorted(aborted, xids)
    found[found == len(aborted)] = 0
    return np.asarray(aborted[found] == xids, bool)
