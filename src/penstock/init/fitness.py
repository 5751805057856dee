"""Whether set-up would take a table as it is, and if not, why and what to do. Pure.

Set-up's own rules decide, on a server that has nothing else in the way: what the server and the
role still lack is told by `penstock doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.config import Config
from penstock.errors import PenstockError
from penstock.init.facts import Survey, Surveyed
from penstock.names import MAX_BYTES, TableName, quote
from penstock.ops.facts import SourceFacts
from penstock.ops.plan import owning_sql, plan_setup
from penstock.postgres.identity import wanted_identity
from penstock.postgres.tables import TableFacts, set_logged
from penstock.printed_sql import PrintedSql, SqlKind, printed


@dataclass(frozen=True, slots=True)
class Unfit:
    """A table that is left out."""

    table: TableName
    # Goes behind its name.
    reason: str
    remedy: str
    # Belongs to the remedy.
    sql: PrintedSql | None = None
    # It could be captured all the same, with a whole old row in the WAL for each change.
    with_full: bool = False

    @property
    def whole_remedy(self) -> str:
        return self.sql.after(self.remedy) if self.sql else self.remedy


def unfit(surveyed: Surveyed, survey: Survey) -> Unfit | None:
    """None: it can be captured."""
    table = surveyed.table
    if problem := _of_its_kind(table, survey.facts):
        return problem
    if surveyed.target:
        reason = "looks like the target of an aggregate"
        return Unfit(table.name, reason, "Take it out of the comment if it is not one")
    if wanted_identity(table, "auto").kind == "full" != table.identity:
        return _keyless(table, survey)
    if (error := setup_error([str(table.name)], survey)) is not None:
        reason = f"would be refused by set-up: {error.problem}"
        return Unfit(table.name, reason, error.remedy)
    return None


def setup_error(
    tables: Sequence[str | Mapping[str, str]],
    survey: Survey,
    aggregate: Mapping[str, Any] | None = None,
) -> PenstockError | None:
    """What set-up would say, if anything, to those entries of `tables` and that aggregate."""
    names = {"slot": survey.free_name, "publication": survey.free_name}
    settings: dict[str, Any] = {"source": {"dsn": "-", "tables": tables, **names}}
    if aggregate is not None:
        settings["aggregate"] = [aggregate]
    config = Config.model_validate(settings)
    wanted = {table.name for table in config.source.tables}
    held = {name: table for name, table in survey.facts.tables.items() if name in wanted}
    try:
        plan_setup(config, replace(_ready(survey.facts), tables=held))
    except PenstockError as error:
        return error
    return None


def _ready(facts: SourceFacts) -> SourceFacts:
    """The same tables on a server and with a role that nothing else is wrong with."""
    server = replace(facts.server, wal_level="logical", in_recovery=False, used_slots=0)
    role = replace(
        facts.role, replication=True, can_connect=True, can_create=True, forbidden_messages=()
    )
    return replace(
        facts,
        server=replace(server, max_slots=1),
        role=role,
        capture_role=role,
        slot=None,
    )


def _of_its_kind(table: TableFacts, facts: SourceFacts) -> Unfit | None:
    name = table.name
    if table.persistence == "unlogged":
        reason = "is unlogged, so its changes are not in the WAL"
        return Unfit(name, reason, "Run", set_logged(name))
    if not table.publishable:
        kind = "system table" if table.system else table.kind
        return Unfit(name, f"is a {kind}, which cannot be published", "Name a table")
    if not table.owned:
        reason = f"belongs to {table.owner}, and only its owner may publish it"
        me = quote(facts.role.name)
        sql = owning_sql(f"TABLE {name.sql}", table.owner, table.owner_superuser, me)
        owning = printed(SqlKind.TABLE_OWNER, sql)
        return Unfit(name, reason, "Connect as its owner, or run as a superuser", owning)
    if any(len(part.encode()) > MAX_BYTES for part in (name.schema, name.name)):
        return Unfit(name, f"has a name of more than {MAX_BYTES} bytes", "Give it a shorter one")
    return None


def _keyless(table: TableFacts, survey: Survey) -> Unfit:
    can = setup_error([{"name": str(table.name), "replica_identity": "full"}], survey) is None
    return Unfit(
        table.name,
        "has neither a primary key nor a unique index without nullable columns",
        "Add a primary key",
        with_full=can,
    )
