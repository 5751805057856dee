"""Set-up: reads the source and the targets, plans, and carries the plan out step by step.

Idempotent: what is there already is not in the plan. A step that waits for others' locks gives way
again and again rather than let the application queue behind it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

import psycopg

from penstock.config import Config, SourceConfig
from penstock.errors import SetupBlocked
from penstock.ops.capture_role import capture_role_name
from penstock.ops.destinations import find_destinations
from penstock.ops.facts import read_facts
from penstock.ops.our_log import our_log_id
from penstock.ops.plan import plan_setup
from penstock.ops.steps import SOURCE, Plan, Step
from penstock.ops.taken_names import taken_names
from penstock.postgres.connect import connect_unlimited
from penstock.postgres.failures import translate, translated
from penstock.postgres.slots import CREATE_DEADLINE_S, create_slot
from penstock.postgres.waiting import Blocker, GaveUp, OnWait, let_finish, run_watched
from penstock.sections import Dsn
from penstock.words import counted

OnStep = Callable[[Step], None]

# What a person is told after an interruption; the second if steps were carried out before it.
_INTERRUPTED = "nothing was left half made"
_KEPT = ", and `penstock setup` goes on from there"


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
        capture_user = capture_role_name(config.source, connection)
        facts = read_facts(connection, config.source, capture_user)
    destinations = find_destinations(config, facts)
    plan = plan_setup(config, facts, [destination for destination, _ in destinations])
    log_id = our_log_id(config)
    for destination, _ in destinations:
        for taken in taken_names(destination, facts, log_id):
            raise taken
    if plan.steps and not dry_run:
        ways = {destination.name: dsn for destination, dsn in destinations}
        ways[SOURCE] = config.source.setup_conninfo
        needed = dict.fromkeys(step.database for step in plan.steps)
        with ExitStack() as stack:
            sessions = {name: Session.open(ways[name], stack) for name in needed}
            runner = Runner(config, sessions, on_wait, patience or Patience())
            runner.run(plan, on_step)
    return plan


def connect_for_setup(source: SourceConfig) -> psycopg.Connection:
    """With `setup_dsn` if there is one."""
    return _connect(source.setup_conninfo)


def _connect(dsn: Dsn) -> psycopg.Connection:
    """Time limits are ours, not the role's."""
    connection = connect_unlimited(dsn)
    # If we are killed while the server waits for others, it stops rather than make the slot later.
    # Not every server's platform has it, so this is not one of the options above.
    with suppress(psycopg.Error):
        connection.execute("SET client_connection_check_interval = '1s'")
    return connection


@dataclass(frozen=True, slots=True)
class Session:
    """In one database."""

    connection: psycopg.Connection
    # Sees whom `connection` waits for.
    observer: psycopg.Connection

    @classmethod
    def open(cls, dsn: Dsn, stack: ExitStack) -> Session:
        return cls(stack.enter_context(_connect(dsn)), stack.enter_context(_connect(dsn)))


@dataclass(frozen=True, slots=True)
class Runner:
    config: Config
    # By the database that a step names.
    sessions: Mapping[str, Session]
    on_wait: OnWait
    patience: Patience

    def run(self, plan: Plan, on_step: OnStep) -> None:
        made: list[Step] = []
        try:
            for step in plan.steps:
                on_step(step)
                self._run_step(step, partial(made.append, step))
        except BaseException as error:
            for step in reversed(made):
                if step.undo:
                    with translated(f"take back what was made ({step.undo})"):
                        self.sessions[step.database].observer.execute(step.undo.encode())
            if not isinstance(error, Exception):  # interrupted
                kept = any(step.undo is None for step in made)
                error.add_note(_INTERRUPTED + (_KEPT if kept else ""))
            raise

    def _run_step(self, step: Step, on_done: Callable[[], None]) -> None:
        session = self.sessions[step.database]
        if step.kind == "create slot":
            create_slot(
                session.connection,
                self.config.source.slot,
                observer=session.observer,
                on_wait=self.on_wait,
                failover=self.config.source.failover,
                plugin=self.config.source.plugin,
                deadline_s=self.patience.slot_deadline_s,
                on_made=on_done,
            )
        else:
            self._run_statements(session, step, on_done)

    def _run_statements(self, session: Session, step: Step, on_done: Callable[[], None]) -> None:
        timeout = f"SET LOCAL lock_timeout = '{self.patience.lock_timeout_s * 1000:.0f}ms'"
        blockers: tuple[Blocker, ...] = ()
        for attempt in range(self.patience.lock_attempts):
            if attempt:
                time.sleep(self.patience.pause_s)
            try:
                run_watched(
                    session.connection,
                    [timeout, *step.statements],
                    observer=session.observer,
                    deadline_s=math.inf,  # the server's lock_timeout ends it
                    on_wait=self.on_wait,
                    on_done=on_done,
                )
            except GaveUp as gave_up:
                blockers = gave_up.blockers or blockers
            except psycopg.Error as error:
                raise translate(error, f"set up {step.title}") from error
            else:
                return
        who = "; ".join(map(str, blockers)) or "sessions that have ended meanwhile"
        raise SetupBlocked(
            f"no lock for {step.title} in {counted(self.patience.lock_attempts, 'attempt')} of "
            f"{self.patience.lock_timeout_s:g} s: it is held by {who}",
            remedy=let_finish([each.pid for each in blockers], "run `penstock setup` again"),
            pids=tuple(blocker.pid for blocker in blockers),
        )
