"""`penstock aggregate`, `reset` and `verify`: flags in, one function called, the result printed."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import config as configuration
from penstock.config import Config
from penstock.declarations import AggregateConfig
from penstock.errors import (
    AggregateStopped,
    ConfigInvalidValue,
    NotSeeded,
    NotVerifiable,
    PenstockError,
)
from penstock.logs import configure_logs
from penstock.ops.tools import read_tools, require_tools
from penstock.terminal import (
    AsJson,
    ConfigPath,
    as_given,
    error_as_dict,
    errors_as_json,
    print_json,
    stderr,
    stdout,
    warn,
)
from penstock.words import visible

Names = Annotated[list[str] | None, typer.Argument(help="Which aggregates.", show_default="all")]


def aggregate(
    config: ConfigPath = None,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
) -> None:
    """Keep the declared aggregates up to date until stopped. A service: its log is on stderr.

    Started before capture has made its log, it waits for that.
    """
    loaded = configuration.load(config)
    # What is missing is told before Spark starts, which takes seconds.
    _chosen(loaded, [])
    require_tools(read_tools())
    from penstock.pipelines.running import run_aggregates

    configure_logs(advise=as_given)
    raise typer.Exit(run_aggregates(loaded, master=master))


def reset(
    name: Annotated[str, typer.Argument(help="The aggregate.")], config: ConfigPath = None
) -> None:
    """Seed one aggregate anew from the source's tables, while everything else goes on.

    One with seed = false is emptied instead, and counts what changes from now on.
    """
    loaded = configuration.load(config)
    (chosen,) = _chosen(loaded, [name])
    from penstock.pipelines.running import spark_when_needed
    from penstock.pipelines.seeding import seed

    with spark_when_needed("penstock reset", loaded.log.path) as spark:
        done = seed(
            loaded,
            chosen,
            spark,
            on_rows=_reading,
            on_grouping=_grouping,
            on_wait=lambda who: _waiting("; ".join(map(str, who))),
        )
    outcome = f"is seeded at {done.lsn}, with {done.rows:,} combinations"
    if not chosen.seed:
        outcome = f"is empty, and counts what commits after {done.lsn}"
    stdout.print(f"{name} {outcome}", markup=False)


def verify(
    names: Names = None,
    config: ConfigPath = None,
    repair: Annotated[bool, typer.Option("--repair", help="Correct what differs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare aggregates with the source, exactly and while everything goes on.

    Exit code 0: no difference, or all are corrected, 1: differences, which are listed, 2: an
    aggregate has stopped, so that it cannot be compared.
    """
    with errors_as_json(as_json):
        loaded = configuration.load(config)
        found = []
        stopped = []
        from penstock.pipelines.running import spark_when_needed
        from penstock.pipelines.verifying import as_dict
        from penstock.pipelines.verifying import verify as run_verify

        all_chosen = _chosen(loaded, names or [])
        warnings = _warn(loaded, all_chosen)
        with spark_when_needed("penstock verify", loaded.log.path) as spark:
            for chosen in all_chosen:
                try:
                    result = run_verify(
                        loaded,
                        chosen,
                        spark,
                        repair=repair,
                        on_rows=(lambda _: None) if as_json else _reading,
                        on_grouping=(lambda _: None) if as_json else _grouping,
                        on_wait=_waiting,
                    )
                except NotVerifiable as error:
                    if names:
                        raise
                    stderr.print(f"{error.problem}: left out", markup=False)
                    continue
                except AggregateStopped as error:
                    # The others are verified first.
                    stopped.append(error)
                    continue
                found.append(result)
                if not as_json:
                    _show(result)
    if as_json:
        told = [error_as_dict(each) for each in warnings]
        others = {"warnings": told, "stopped": [error_as_dict(each) for each in stopped]}
        print_json({"aggregates": [as_dict(each) for each in found], **others})
    for other in stopped[1:]:
        warn(other)
    if stopped:
        raise stopped[0]
    left = any(each.differences and not each.repaired for each in found)
    raise typer.Exit(1 if left else 0)


def _warn(config: Config, aggregates: list[AggregateConfig]) -> list[PenstockError]:
    """First of all, for what takes long may be better begun when it is mended."""
    from penstock.pipelines.sources import source_warnings

    found = source_warnings(config, aggregates)
    for each in found:
        warn(each)
    return found


def _reading(rows: int) -> None:
    stderr.print(f"  {rows:,} rows read", markup=False)


def _grouping(at: object) -> None:
    stderr.print(f"  {visible(str(at))}", markup=False)


def _waiting(what: str) -> None:
    stderr.print(f"  waiting for {visible(what)}", markup=False)


def _show(result: object) -> None:
    from penstock.pipelines.verifying import Verified

    assert isinstance(result, Verified)  # noqa: S101 - Spark's module is imported late
    for each in result.differences:
        stdout.print(str(each), markup=False)
    outcome = f"{len(result.differences):,} differences"
    if result.repaired:
        outcome += ", corrected"
    parked = f", {result.parked:,} keys parked" if result.parked else ""
    stdout.print(
        f"{result.aggregate} at {result.lsn}: {result.keys:,} rows, {outcome}{parked}", markup=False
    )


def _chosen(config: Config, names: list[str]) -> list[AggregateConfig]:
    known = {each.name: each for each in config.aggregate}
    if not known:
        raise NotSeeded(
            "no aggregate is declared", remedy="Add an [[aggregate]] to the configuration"
        )
    for name in names:
        if name not in known:
            raise ConfigInvalidValue(
                f"there is no aggregate {name}",
                remedy=f"Those declared are: {', '.join(known)}",
                name=name,
            )
    return [known[name] for name in names] if names else list(config.aggregate)
