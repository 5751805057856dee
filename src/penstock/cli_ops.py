"""`penstock doctor`, `setup` and `teardown`: flags in, one function called, the result printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from penstock import config as configuration
from penstock.ops import present
from penstock.ops.doctor import diagnose
from penstock.ops.expressions import look_at_expressions
from penstock.ops.findings import as_json as findings_as_json
from penstock.ops.findings import exit_code
from penstock.ops.setup import setup as run_setup
from penstock.ops.steps import Plan
from penstock.ops.teardown import teardown as run_teardown
from penstock.terminal import (
    AsJson,
    ConfigPath,
    DryRun,
    as_given,
    errors_as_json,
    print_json,
    stderr,
    stdout,
)


def doctor(config: ConfigPath = None, as_json: AsJson = False) -> None:
    """Check the source and this machine; say what is wrong and the SQL that mends it.

    Exit code 0: fine, 1: warnings, 2: cannot run.
    """
    with errors_as_json(as_json):
        path = config or (
            configuration.DEFAULT_PATH if configuration.DEFAULT_PATH.exists() else None
        )
        found = diagnose(configuration.load(config), path, look_at_expressions)
    findings = [replace(each, fix=as_given(each.fix)) for each in found]
    if as_json:
        print_json(findings_as_json(findings))
    else:
        present.show_findings(stdout, findings)
    raise typer.Exit(exit_code(findings))


def setup(config: ConfigPath = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Make replica identities, publication, permissions and slot, as far as they are missing."""
    progress = present.Progress(stderr if as_json else stdout, "setting up")
    with errors_as_json(as_json):
        plan = run_setup(
            configuration.load(config),
            dry_run=dry_run,
            on_step=progress.step,
            on_wait=progress.waiting,
        )
    _show(plan, dry_run=dry_run, as_json=as_json, nothing="Nothing to do: all is set up.")


def teardown(
    config: ConfigPath = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="End the process that reads from the slot.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Drop the slot, which releases its WAL, and the publication if Penstock made it and no other
    slot may read it.
    """
    progress = present.Progress(stderr if as_json else stdout, "dropping")
    with errors_as_json(as_json):
        plan = run_teardown(
            configuration.load(config), dry_run=dry_run, force=force, on_step=progress.step
        )
    _show(plan, dry_run=dry_run, as_json=as_json, nothing="Nothing to do.")


def _show(plan: Plan, *, dry_run: bool, as_json: bool, nothing: str) -> None:
    plan = replace(plan, notes=tuple(map(as_given, plan.notes)))
    if as_json:
        print_json(present.plan_as_json(plan, dry_run=dry_run))
    elif dry_run:
        present.show_dry_run(stdout, plan)
    else:
        present.show_outcome(stdout, plan, nothing)
