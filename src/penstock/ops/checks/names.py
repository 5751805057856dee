"""Names of the source's tables and columns: whether they can be written in UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.ops.findings import Finding
from penstock.postgres.undecodable_names import UndecodableName

_WHY = (
    "Changes are captured all the same, and their names shown as here. But what is not UTF-8 can "
    "be named neither in `tables` nor in an aggregate, and set-up cannot look at a publication "
    "that lists it."
)


def check_names(undecodable: Iterable[UndecodableName]) -> Iterator[Finding]:
    for each in undecodable:
        what = f"the name of this {each.kind} is not UTF-8"
        yield Finding("name_encoding", "warning", each.shown, what, _WHY, each.rename_sql)
