"""Set-up: reads the source, plans, and carries the plan out step by step.

Idempotent: what is there already is not in the plan. A step that waits for others' locks gives way
again and again rather than let the application queue behind it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from penstock.config import Config, SourceConfig
from penstock.errors import SetupBlocked
from penstock.ops.facts import read_facts
from penstock.ops.plan import Plan, Step, plan_setup
from penstock.postgres.connect import connect
from penstock.postgres.failures import translate, translated
from penstock.postgres.slots import CREATE_DEADLINE_S, create_slot
from penstock.postgres.waiting import Blocker, GaveUp, OnWait, run_watched

OnStep = Callable[[Step], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long set-up waits for others."""

    # While we wait for a table's lock, everybody who comes later waits behind us.
    lock_timeout_s: float = 2.0
    lock_attempts: int = 5
    # Lets those who queued behind us through.
    pause_s: float = 1.0
    slot_deadline_s: float = CREATE_DEADLINE_S


def setup(
    config: Config,
    *,
    dry_run: bool = False,
    on_step: OnStep = lambda _: None,
    on_wait: OnWait = lambda _: None,
    patience: Patience | None = None,
) -> Plan:
    """Carry out what is missing and return it; with `dry_run` only return it."""
    with connect_for_setup(config.source) as connection:
        plan = plan_setup(config, read_facts(connection, config.source))
        if plan.steps and not dry_run:
            with connect_for_setup(config.source) as observer:
                runner = _Runner(config, connection, observer, on_wait, patience or Patience())
                runner.run(plan, on_step)
    return plan


def connect_for_setup(source: SourceConfig) -> psycopg.Connection:
    """With `setup_dsn` if there is one; time limits are ours, not the role's."""
    return connect(
        source.setup_conninfo,
        what=f"{'setup_dsn' if source.setup_dsn else 'dsn'} in [source]",
        options="-c lock_timeout=0 -c statement_timeout=0",
    )


@dataclass(frozen=True, slots=True)
class _Runner:
    config: Config
    connection: psycopg.Connection
    # Sees whom `connection` waits for.
    observer: psycopg.Connection
    on_wait: OnWait
    patience: Patience

    def run(self, plan: Plan, on_step: OnStep) -> None:
        undo: list[str] = []
        try:
            for step in plan.steps:
                on_step(step)
                self._run_step(step)
                if step.undo:
                    undo.insert(0, step.undo)
        except BaseException:
            for statement in undo:
                with translated(f"take back what was made ({statement})"):
                    self.observer.execute(statement.encode())
            raise

    def _run_step(self, step: Step) -> None:
        if step.kind == "create slot":
            create_slot(
                self.connection,
                self.config.source.slot,
                observer=self.observer,
                on_wait=self.on_wait,
                failover=self.config.source.failover,
                deadline_s=self.patience.slot_deadline_s,
            )
        else:
            self._run_statements(step)

    def _run_statements(self, step: Step) -> None:
        timeout = f"SET LOCAL lock_timeout = '{self.patience.lock_timeout_s * 1000:.0f}ms'"
        blockers: tuple[Blocker, ...] = ()
        for attempt in range(self.patience.lock_attempts):
            if attempt:
                time.sleep(self.patience.pause_s)
            try:
                run_watched(
                    self.connection,
                    [timeout, *step.statements],
                    observer=self.observer,
                    deadline_s=math.inf,  # the server's lock_timeout ends it
                    on_wait=self.on_wait,
                )
            except GaveUp as gave_up:
                blockers = gave_up.blockers or blockers
            except psycopg.Error as error:
                raise translate(error, f"set up {step.title}") from error
            else:
                return
        who = "; ".join(map(str, blockers)) or "sessions that have ended meanwhile"
        raise SetupBlocked(
            f"no lock for {step.title} in {self.patience.lock_attempts} attempts of "
            f"{self.patience.lock_timeout_s:g} s: it is held by {who}",
            remedy=(
                "Let them finish or end them (SELECT pg_terminate_backend(pid)), then run "
                "`penstock setup` again"
            ),
            pids=tuple(blocker.pid for blocker in blockers),
        )
