"""Which old values of a table, or of one of its partitions, the stream tells. Pure. M4.2

The stream describes a partition's changes with its root's identity, and the partition's own decides
what is there; a new partition has DEFAULT, whatever its root has. Of what the root has and the
partition has not, nothing in the stream tells that it is missing: an UPDATE that changes it comes
without an old row, as if it were the same, and in a whole old row it is NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.declarations import AggregateConfig, AggregateSource
from penstock.errors import PartitionDiffers, UnsafeIdentity
from penstock.names import TableName
from penstock.pipelines.inputs import counting_sources, input_columns, read_columns
from penstock.postgres.identity import Wanted, wanted_for_leaf
from penstock.postgres.tables import TableFacts
from penstock.printed_sql import SqlKind, printed
from penstock.words import few

# A table may have hundreds of partitions.
_MOST_STATEMENTS = 10


def known_old_values(root: TableFacts, part: TableFacts) -> set[str]:
    """The columns of which old values can be had; `part` is a leaf of the root, or the root."""
    own = set(part.identity_columns)
    if part is root or root.identity == part.identity == "full":
        return own
    # A leaf's FULL is sent as a key: what goes beyond the root's is not read.
    return set() if root.identity == "full" else own & set(root.identity_columns)


def needed_old_values(
    aggregate: AggregateConfig, source: AggregateSource, table: TableFacts
) -> dict[str, set[str]]:
    """Operation → the columns of which it needs old values."""
    changing = {
        column.name
        for name in aggregate.inputs
        if name not in source.immutable
        for column in input_columns(source, table, name)
    }
    needs = {"update": changing, "delete": _names(aggregate, source, table)}
    return {rule: names for rule, names in needs.items() if rule in source.rules}


def missing_old_values(
    aggregate: AggregateConfig, source: AggregateSource, root: TableFacts, part: TableFacts
) -> dict[str, set[str]]:
    """Operation → the columns that it needs and cannot have."""
    needed = needed_old_values(aggregate, source, root)
    if root.identity == "full" != part.identity and "update" in needed:
        # NULL in a whole old row is taken for the old value, also of what is immutable.
        needed["update"] = _names(aggregate, source, root)
    known = known_old_values(root, part)
    return {rule: names - known for rule, names in needed.items() if names - known}


def _names(aggregate: AggregateConfig, source: AggregateSource, table: TableFacts) -> set[str]:
    """The columns that the aggregate reads, by their names in the table."""
    return {column.name for column in read_columns(aggregate, source, table)}


def not_written(tables: Sequence[TableFacts], missing: Mapping[str, set[str]]) -> str:
    """The same in words, of tables with the same identity and the same gaps.

    What is in a partition's own identity cannot be had either where its root has FULL; but it is
    written, and what is not is enough to say.
    """
    own = set(tables[0].identity_columns)
    rules: dict[str, list[str]] = {}
    for rule, names in missing.items():
        rules.setdefault(", ".join(sorted(names - own or names)), []).append(rule.upper())
    which = few(table.name for table in tables)
    return "; ".join(
        f"{' and '.join(each)} of {which} {'does' if len(each) == 1 else 'do'} not write the old "
        f"{columns} to the WAL"
        for columns, each in rules.items()
    )


def wanted_like_root(root: TableFacts, leaf: TableFacts) -> Wanted | None:
    """Return the root's identity for a leaf; None if the leaf has no such index."""
    try:
        return wanted_for_leaf(leaf, Wanted(root.identity, root.identity_index), "auto")
    except UnsafeIdentity:
        return None


def like_root(root: TableFacts, leaf: TableFacts) -> str | None:
    """The SQL that makes the leaf's identity that of its root; None: it has no such index."""
    wanted = wanted_like_root(root, leaf)
    return None if wanted is None else wanted.sql(leaf)


def lacking_leaves(
    aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts]
) -> Iterator[tuple[TableFacts, TableFacts]]:
    """Roots, each with a leaf that lacks what the root has and the aggregate needs."""
    return ((root, leaf) for root, leaf, _ in _lost(aggregate, tables))


def corrected(aggregates: Iterable[AggregateConfig]) -> str:
    """How counts become right that have gone wrong."""
    return "; ".join(
        f"`penstock verify --repair {each.name}` or `penstock reset {each.name}`"
        if each.seed and each.verifiable
        else f"`penstock reset {each.name}`"
        for each in aggregates
    )


def partition_error(
    aggregates: Iterable[AggregateConfig], tables: Mapping[TableName, TableFacts]
) -> PartitionDiffers | None:
    """One for all leaves and all aggregates: once it is mended, nothing would tell of the others.

    What the root does not have either is no matter of partitions: such changes are skipped, and
    counted as skipped.
    """
    lost: dict[TableName, _Gap] = {}
    wrong: dict[str, AggregateConfig] = {}
    for aggregate in aggregates:
        for root, leaf, columns in _lost(aggregate, tables):
            wrong[aggregate.name] = aggregate
            missing = lost.setdefault(leaf.name, _Gap(root, leaf, {})).missing
            for rule, names in columns.items():
                missing.setdefault(rule, set()).update(names)
    if not lost:
        return None
    roots = tuple(dict.fromkeys(each.root.name for each in lost.values()))
    which = ("aggregate " if len(wrong) == 1 else "aggregates ") + few(wrong)
    return PartitionDiffers(
        f"partitions of {few(roots)} have another replica identity than their root, so {which} "
        f"would go wrong: {_in_words(lost.values())}",
        remedy=_remedy(lost.values(), wrong.values()),
        tables=tuple(lost),
        roots=roots,
        aggregates=tuple(wrong),
    )


@dataclass(frozen=True, slots=True)
class _Gap:
    """What a leaf leaves out that its root has."""

    root: TableFacts
    leaf: TableFacts
    missing: dict[str, set[str]]


def _in_words(lost: Iterable[_Gap]) -> str:
    """Most leaves lack the same: told once."""
    alike: dict[object, list[_Gap]] = {}
    for each in lost:
        columns = frozenset((rule, frozenset(names)) for rule, names in each.missing.items())
        alike.setdefault((columns, each.leaf.identity_columns), []).append(each)
    return "; ".join(
        not_written([each.leaf for each in some], some[0].missing) for some in alike.values()
    )


def _remedy(lost: Iterable[_Gap], wrong: Iterable[AggregateConfig]) -> str:
    """With each statement on a line of its own."""
    sql = [found for each in lost if (found := like_root(each.root, each.leaf))]
    setup = "Run `penstock setup`"
    some = printed(SqlKind.IDENTITY, *sql[:_MOST_STATEMENTS]).after(f"{setup}, or") if sql else ""
    lines = [some or setup]
    if (more := len(sql) - _MOST_STATEMENTS) > 0:
        lines.append(f"  and {more:,} more, which `penstock setup --dry-run` prints")
    names = " and ".join(f"penstock reset {each.name}" for each in wrong)
    lines.append(f"Then, if it has begun: {names}")
    return "\n".join(lines)


def _lost(
    aggregate: AggregateConfig, tables: Mapping[TableName, TableFacts]
) -> Iterator[tuple[TableFacts, TableFacts, dict[str, set[str]]]]:
    """Roots and leaves, and what the root has and the leaf has not."""
    for source, root in counting_sources(aggregate, tables):
        itself = missing_old_values(aggregate, source, root, root)
        for leaf in root.leaves:
            if not leaf.publishable:  # then it has nothing in the WAL
                continue
            missing = missing_old_values(aggregate, source, root, leaf)
            lost = {rule: names - itself.get(rule, set()) for rule, names in missing.items()}
            if lost := {rule: names for rule, names in lost.items() if names}:
                yield root, leaf, lost
