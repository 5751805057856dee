"""The aggregate that tests of audits share."""

from __future__ import annotations

from typing import Any

from penstock.config import Config
from penstock.pipelines.verifying import Verified, verify
from support.targets import declared
from support.truth import no_spark

COUNTS = declared(measures={"count": "count", "cost": "sum(price)"})


def verified(config: Config, **options: Any) -> Verified:
    return verify(config, COUNTS, no_spark, **options)
