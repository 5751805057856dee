"""A target is written for one reason: it is kept by one aggregate, and no source."""

from __future__ import annotations

from uuid import uuid4

import pytest

from penstock.declarations import AggregateConfig
from penstock.errors import TargetClash
from penstock.lsn import Lsn
from penstock.ops.doctor import diagnose
from penstock.ops.setup import setup
from penstock.pipelines.seeding import begin
from support.aggregates import config_with, declared
from support.database import Database


def test_a_target_that_is_a_source_or_shared_is_refused(notes18: Database) -> None:
    for aggregates in (
        [declared(targets=["notes"])],
        [declared(targets=["penstock.progress"])],
        [declared(), declared(name="again")],
    ):
        config = config_with(notes18, *aggregates)
        with pytest.raises(TargetClash):
            setup(config)
        assert any("write" in f.what for f in diagnose(config) if f.level == "error")


# M5.3: two would add their changes to each other's counts.
def test_a_target_that_another_file_s_aggregate_keeps_is_refused(notes18: Database) -> None:
    setup(config_with(notes18, declared()))
    with notes18.connect() as connection:
        begin(connection, AggregateConfig.model_validate(declared()), str(uuid4()), Lsn(1))
    other = config_with(notes18, declared(name="again"))
    with pytest.raises(TargetClash, match="which aggregate counts keeps") as caught:
        setup(other)
    assert any("counts keeps" in f.what for f in diagnose(other) if f.level == "error")
    notes18.run(caught.value.remedy.partition("database: ")[2])
    setup(other)
