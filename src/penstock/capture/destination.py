"""Which way changes take to a destination. Pure; asked once, when a connection starts.

direct     each fragment is handed over as it arrives, the commit is a step of its own: the log
buffered   a `TransactionBuilder` collects it, and only what has committed is handed over
"""

from __future__ import annotations


def fragment_direct(*, hides_uncommitted: bool, filtering_snapshot: bool) -> bool:
    """Whether fragments may go to the destination before their commit is known.

    They may if nobody sees them there until then. While a snapshot is being filtered it is the
    commit that says whether a transaction is in the snapshot already: that must be known first.
    """
    return hides_uncommitted and not filtering_snapshot
