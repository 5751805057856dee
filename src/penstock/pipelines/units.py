"""Units that an expression names: of one that it does not know, Spark makes NULL, for every row."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.pipelines.analysed import Node

_OF_DATES = frozenset("WEEK MON MONTH MM QUARTER YEAR YYYY YY".split())
# Not finer than a minute.
OF_MINUTES = _OF_DATES | frozenset("MINUTE HOUR DAY DD".split())
_OF_MOMENTS = OF_MINUTES | frozenset("MICROSECOND MILLISECOND SECOND".split())


def unknown_units(tree: Node) -> Iterator[str]:
    """Those of `date_trunc` and `trunc` that are written out."""
    for node in tree.walk():
        match node:
            case Node("TruncTimestamp", _, (Node("Literal", _, _, unit), _)):
                known = _OF_MOMENTS
            case Node("TruncDate", _, (_, Node("Literal", _, _, unit))):
                known = _OF_DATES
            case _:
                continue
        if unit.upper() not in known:
            yield unit
