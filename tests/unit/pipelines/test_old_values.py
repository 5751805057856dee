"""Partitions that write less to the WAL than their root promises, from facts alone. M4.2, M4.6"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.declarations import AggregateConfig
from penstock.errors import PartitionDiffers
from penstock.pipelines.old_values import partition_error
from penstock.postgres.tables import Index, TableFacts
from support.aggregates import declared
from support.facts import column, table

COLUMNS = (column("id"), column("status"), column("job", not_null=False))
PKEY, COVERING = Index("pkey", ("id",)), Index("covering", ("id", "status"))
DEFAULT: dict[str, Any] = {"identity": "default"}
FULL: dict[str, Any] = {"identity": "full"}
BY_INDEX: dict[str, Any] = {"identity": "index", "identity_index": COVERING}
LOG: dict[str, Any] = {"table": "notes", "update": False, "delete": False}


def part(name: str, identity: dict[str, Any], **changes: Any) -> TableFacts:
    given = {"columns": COLUMNS, "primary_key": PKEY, "candidates": (COVERING, PKEY)}
    return table(name, **given, **identity, **changes)


def notes(root: dict[str, Any], *leaves: TableFacts) -> TableFacts:
    return part("notes", root, kind="partitioned table", leaves=leaves)


def aggregate(**changes: Any) -> AggregateConfig:
    return AggregateConfig.model_validate(declared(**{"dimensions": ["status"], **changes}))


def error(*aggregates: AggregateConfig, of: TableFacts) -> PartitionDiffers | None:
    return partition_error(aggregates or (aggregate(),), {of.name: of})


def of_source(**entry: Any) -> AggregateConfig:
    return aggregate(sources=[{"table": "notes", **entry}], verifiable=False)


@pytest.mark.parametrize(
    ("root", "leaf", "differs"),
    [
        (FULL, FULL, False),
        (FULL, DEFAULT, True),
        (FULL, BY_INDEX, True),
        (BY_INDEX, BY_INDEX, False),
        (BY_INDEX, FULL, False),
        (BY_INDEX, DEFAULT, True),
        # Of what the root does not promise either, it is seen that it is missing.
        (DEFAULT, DEFAULT, False),
        (DEFAULT, FULL, False),
        (DEFAULT, BY_INDEX, False),
    ],
)
def test_a_partition_must_hold_what_its_root_promises(
    root: dict[str, Any], leaf: dict[str, Any], differs: bool
) -> None:
    assert (error(of=notes(root, part("leaf", leaf))) is not None) is differs


@pytest.mark.parametrize(
    ("one", "root", "differs"),
    [
        (aggregate(dimensions=["id"]), BY_INDEX, False),
        (of_source(update=False), BY_INDEX, True),
        (of_source(delete=False), BY_INDEX, True),
        (aggregate(sources=[LOG], verifiable=False), BY_INDEX, False),
        (aggregate(sources=[LOG], verifiable=False), FULL, False),
        (of_source(delete=False, immutable=["status"]), BY_INDEX, False),
        # When the key changes, a whole old row comes: with NULL, which would be believed.
        (of_source(delete=False, immutable=["status"]), FULL, True),
    ],
)
def test_it_matters_where_an_old_value_is_needed(
    one: AggregateConfig, root: dict[str, Any], differs: bool
) -> None:
    assert (error(one, of=notes(root, part("leaf", DEFAULT))) is not None) is differs


def test_the_error_names_every_partition_its_sql_and_every_aggregate() -> None:
    tables = notes(BY_INDEX, part("a", DEFAULT), part("b", BY_INDEX), part("c", DEFAULT))
    by_id = aggregate(name="by_id", dimensions=["id"], targets=["t1"])
    unseeded = aggregate(name="later", seed=False, targets=["t2"])
    found = error(aggregate(), by_id, unseeded, of=tables)
    assert found is not None
    assert found.problem == (
        "partitions of public.notes have another replica identity than their root, so aggregates "
        "counts, later would go wrong: "
        "UPDATE and DELETE of public.a, public.c do not write the old status to the WAL"
    )
    assert found.remedy == (
        "Run `penstock setup`, or:\n"
        "  ALTER TABLE public.a REPLICA IDENTITY USING INDEX covering;\n"
        "  ALTER TABLE public.c REPLICA IDENTITY USING INDEX covering;\n"
        "Then, if it has begun: penstock reset counts and penstock reset later"
    )


def test_of_many_partitions_a_few_are_named_and_of_their_statements_some() -> None:  # M7.3
    leaves = [part(f"p{number:03}", DEFAULT) for number in range(365)]
    found = error(of=notes(BY_INDEX, *leaves))
    assert found is not None
    assert found.problem.endswith(
        "UPDATE and DELETE of public.p000, public.p001, public.p002 and 362 more do not write the "
        "old status to the WAL"
    )
    first, *statements, more, last = found.remedy.splitlines()
    assert first == "Run `penstock setup`, or:"
    assert len(statements) == 10
    assert more == "  and 355 more, which `penstock setup --dry-run` prints"
    assert last == "Then, if it has begun: penstock reset counts"


def test_only_what_a_partition_does_not_write_is_told_and_equal_gaps_together() -> None:
    # M4.2, M7.3
    by_all = aggregate(dimensions=["id", "status", "job"])
    leaves = [part("a", DEFAULT), part("b", BY_INDEX), part("c", DEFAULT)]
    found = error(by_all, of=notes(FULL, *leaves))
    assert found is not None
    assert found.problem.partition("would go wrong: ")[2] == (
        "UPDATE and DELETE of public.a, public.c do not write the old job, status to the WAL; "
        "UPDATE and DELETE of public.b do not write the old job to the WAL"
    )
    # Of an update that leaves the key as it is, nothing is sent by which to know it.
    found = error(aggregate(dimensions=["id"]), of=notes(FULL, part("a", DEFAULT)))
    assert found is not None
    assert found.problem.endswith("of public.a do not write the old id to the WAL")
    mixed = aggregate(
        sources=[{"table": "notes", "delete": False}], dimensions=["status"], verifiable=False
    )
    found = error(mixed, of=notes(FULL, part("a", DEFAULT)))
    assert found is not None
    assert found.problem.endswith(": UPDATE of public.a does not write the old status to the WAL")


def test_a_partition_with_nothing_in_the_wal_does_not_matter() -> None:
    assert error(of=notes(FULL, part("leaf", DEFAULT, kind="foreign table"))) is None
