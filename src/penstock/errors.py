"""Every error that Penstock raises on purpose. Shared word: imports only `lsn`, `names` and
`printed_sql`.

    PenstockError
    ├─ ConfigError      the operator must change a setting
    ├─ SourceError      the database, its slot or its publication
    ├─ LogError         the change log
    └─ PipelineError    what reads the log

Each class is one mistake or one fault, says which thing is wrong, and carries a remedy. None holds
a row value or a password. They survive pickling, for Spark moves them between processes. Which
ones are worth a retry is decided in two places: `penstock.capture.policy` for capture,
`penstock.pipelines.passing` for aggregates.
"""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Any

from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.printed_sql import PrintedSql, terminated


class PenstockError(Exception):
    """`problem` names the thing that is wrong, `remedy` says what to do; facts are attributes."""

    def __init__(self, problem: str, *, remedy: str, **facts: Any) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.__dict__.update(facts)

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses have constructors of their own, so rebuild from the state, not by calling them.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[PenstockError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def new_log(folder: str | None = None) -> str:
    """The steps, where a log cannot be continued. `folder`: the log's, where it is known."""
    away = "move the folder that `path` in [log] names away"
    if folder is not None:
        away = f"move {folder} away (mv {shlex.quote(folder)} {shlex.quote(folder + '.old')})"
    return (
        "stop `penstock run`, run `penstock teardown`, "
        f"{away}, run `penstock setup`, start `penstock run`, and seed the targets again: "
        "`penstock reset NAME` for each aggregate"
    )


# --- configuration ------------------------------------------------------------------------------


class ConfigError(PenstockError):
    """A setting must change before Penstock can run."""


class ConfigMissing(ConfigError):
    """The configuration file is not there or cannot be read."""


class ConfigExists(ConfigError):
    """A configuration file would be overwritten."""


class ConfigNotWritten(ConfigError):
    """A new configuration file cannot be written where it should be."""


class ConfigSyntax(ConfigError):
    """The file is not TOML."""


class ConfigUnknownKey(ConfigError):
    """A key that Penstock does not know: most often a typing mistake."""


class ConfigInvalidValue(ConfigError):
    """A key has a value of the wrong type, or one that is out of range."""


class ConfigMissingKey(ConfigError):
    """A key that has no default is absent."""


class SourcesDiffer(ConfigError):
    """`dsn` and `setup_dsn` lead to different databases; slot and publication belong to one."""


class ToolMissing(ConfigError):
    """A program that Penstock needs on this machine (Java, a PostgreSQL server) is absent."""


class ScratchUnwritable(ConfigError):
    """Temporary files have no place on this machine."""


# --- source -------------------------------------------------------------------------------------


class SourceError(PenstockError):
    """The source database, its slot or its publication."""


class BadDsn(SourceError):
    """libpq cannot make sense of the connection string."""


class SourceUnavailable(SourceError):
    """The server cannot be reached now: down, starting, out of connections, or unreachable."""


class ConnectionLost(SourceError):
    """A connection broke, to the source or to a target: cut, session ended, server crashed."""


class ServerShutdown(ConnectionLost):
    """The server ended replication cleanly because it is shutting down."""


class ConnectionStale(ConnectionLost):
    """Nothing at all was received for too long: the connection is only apparently open."""


class AuthenticationFailed(SourceError):
    """The server refused the user or the password."""


class DatabaseMissing(SourceError):
    """The server has no database of that name."""


class PrivilegeMissing(SourceError):
    """The role lacks a privilege; the remedy holds the SQL that grants it."""


class ServerTooOld(SourceError):
    """The server's version cannot stream logical changes the way Penstock needs."""


class WrongServer(SourceError):
    """The server is not the one this log was written from."""


class WrongTimeline(SourceError):
    """After a failover: the new server left our timeline before our position."""


class OlderTimeline(SourceError):
    """The log has followed a failover, and this server has not: it was left behind."""


class ServerRewound(SourceError):
    """The server does not have what it had before: restored from an older image."""


class NotLogical(SourceError):
    """`wal_level` is not `logical`."""


class TableMissing(SourceError):
    """A table named in the configuration does not exist."""


class NothingToCapture(SourceError):
    """The database has no table that could be captured as it is."""


class PublicationMissing(SourceError):
    """The publication does not exist, or was dropped while capture was running."""

    while_running: bool

    def __init__(
        self, publication: str, log: str | None = None, *, while_running: bool = False
    ) -> None:
        """`log`: there is one already, which a new publication could not continue."""
        lost = f"Changes made without it cannot be decoded. Start a new log: {new_log(log)}"
        problem = f'publication "{publication}" does not exist in this database'
        remedy = "Run `penstock setup`, or correct `publication` in [source]"
        if while_running:
            problem = f'publication "{publication}" was dropped while capture was running'
            remedy = lost
        elif log is not None:
            remedy = (
                "Correct `publication` in [source] if it is misspelt. If the publication was "
                f"dropped: {lost[0].lower()}{lost[1:]}"
            )
        super().__init__(
            problem, remedy=remedy, publication=publication, while_running=while_running
        )


class OutputPluginNotAllowed(SourceError):
    """The server's setting output_plugin_libraries leaves out the plugin that we decode with."""


class NotUtf8(SourceError):
    """A text of the source has no place in UTF-8. Which one is not told: it is a row's."""


class SlotMissing(SourceError):
    """There is no slot of that name."""

    def __init__(self, slot: str, log: str | None = None) -> None:
        """`log`: there is one already, which a new slot could not continue."""
        remedy = "Run `penstock setup`, or correct `slot` in [source]"
        if log is not None:
            remedy = (
                "Correct `slot` in [source] if it is misspelt. If it was dropped, changes since "
                f"then are lost to the log. Start a new one: {new_log(log)}"
            )
        super().__init__(f'replication slot "{slot}" does not exist', remedy=remedy, slot=slot)


class WrongSlot(SourceError):
    """The log was written from another slot of the same database."""

    def __init__(self, written_from: str, slot: str) -> None:
        super().__init__(
            f'the log was written from slot "{written_from}", and [source] names "{slot}"',
            remedy="Correct `slot` in [source], or name another directory in [log] for a new log",
            slot=slot,
        )


class SlotInUse(SourceError):
    """Another process reads from the slot."""

    def __init__(
        self,
        slot: str,
        pid: int | None = None,
        *,
        holder: str | None = None,
        remedy: str | None = None,
    ) -> None:
        by = f"process {pid} of the server" if pid else "another connection"
        by += f" ({holder})" if holder else ""
        super().__init__(
            f'replication slot "{slot}" is in use by {by}',
            remedy=remedy
            or "Stop the other reader, or, if it is a left-over, run "
            + (str(terminated([pid])) if pid else "`penstock doctor` to name it"),
            slot=slot,
            pid=pid,
        )


class PollerRunning(SourceError):
    """Another worker polls the slot: one at a time does."""

    def __init__(self, slot: str, pid: int | None, holder: str | None) -> None:
        by = f"process {pid} of the server" if pid else "a session that has just ended"
        super().__init__(
            f'replication slot "{slot}" is polled by another worker: {by}'
            + (f" ({holder})" if holder else ""),
            remedy="One worker polls a slot at a time, and this one has stopped by itself. If the "
            "other is a left-over, run " + (str(terminated([pid])) if pid else "this again"),
            slot=slot,
            pid=pid,
        )


class OutputPluginMissing(SourceError):
    """The server has no such output plugin."""

    def __init__(self, plugin: str) -> None:
        super().__init__(
            f"the output plugin {plugin} is not installed on the server",
            remedy="Install it there (Debian: postgresql-VERSION-wal2json), or set plugin = "
            '"pgoutput" in [source], which every server has',
            plugin=plugin,
        )


class PeekTooLarge(SourceError):
    """The server has no room for the rows of one peek."""

    def __init__(self, slot: str, text: str) -> None:
        super().__init__(
            f'the server has no room for what a peek at slot "{slot}" brings: {text}',
            remedy="Nothing was confirmed. Raise temp_file_limit of the role, or make room where "
            "the server keeps temporary files: the largest transaction must fit there",
            slot=slot,
        )


class PluginOptionUnknown(SourceError):
    """The plugin on the server is too old for an option that we need."""

    def __init__(self, plugin: str, text: str) -> None:
        super().__init__(
            f"the output plugin {plugin} on the server refuses an option: {text}",
            remedy=f"Install {plugin} 2.5 or newer on the server, or set plugin = "
            '"pgoutput" in [source], which needs a slot of its own',
            plugin=plugin,
        )


class ChangeDropped(SourceError):
    """wal2json leaves out updates and deletes of a table without a replica identity."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"wal2json left out a change of table {table}, which has no replica identity",
            remedy="Nothing after it was confirmed. Give the table a primary key or the replica "
            "identity FULL, as `penstock setup` does. The change itself cannot be had any more, so "
            f"start a new log: {new_log()}",
            table=table,
        )


class TimelineUnknown(SourceError):
    """The server was promoted, and polling cannot see where it left our timeline."""

    def __init__(self, timeline: int) -> None:
        super().__init__(
            f"the server has moved to timeline {timeline}, and only a replication connection can "
            "tell whether it has everything that the log has",
            remedy='Capture once with mode = "stream" in [source], which checks that and notes the '
            "new timeline; then poll on. Where a replication connection is not to be had, start a "
            f"new log: {new_log()}",
            timeline=timeline,
        )


class SlotInvalidated(SourceError):
    """The server gave up the slot's WAL: changes are gone."""

    def __init__(self, slot: str, reason: str | None = None) -> None:
        super().__init__(
            f'replication slot "{slot}" was invalidated by the server'
            + (f" ({reason})" if reason else ""),
            remedy=(
                f"Its WAL is gone, so changes are missing. Start a new log: {new_log()}. Raise "
                "max_slot_wal_keep_size to keep it from happening again"
            ),
            slot=slot,
            reason=reason,
        )


class SlotWrongPlugin(SourceError):
    """The slot decodes with another output plugin than the one that [source] names."""

    def __init__(self, slot: str, plugin: str | None, *, wanted: str = "pgoutput") -> None:
        what = f'uses the output plugin "{plugin}"' if plugin else "is a physical slot"
        super().__init__(
            f'replication slot "{slot}" {what}, not "{wanted}"',
            remedy="Name another slot in [source], or drop this one and run `penstock setup`",
            slot=slot,
            plugin=plugin,
        )


class SlotTwoPhase(SourceError):
    """The slot has two-phase decoding on, which shows transactions before they commit."""

    def __init__(self, slot: str) -> None:
        super().__init__(
            f'replication slot "{slot}" has two-phase decoding on',
            remedy="Name another slot in [source], or drop this one and run `penstock setup`",
            slot=slot,
        )


class SlotOtherDatabase(SourceError):
    """The slot belongs to another database of the same server."""

    def __init__(self, slot: str, slot_database: str, database: str) -> None:
        super().__init__(
            f'replication slot "{slot}" belongs to database "{slot_database}", not "{database}"',
            remedy="Slot names are shared by the whole server: choose another `slot` in [source]",
            slot=slot,
        )


class SlotAheadOfLog(SourceError):
    """The slot was confirmed past what the log holds: recreated, or advanced by hand."""

    def __init__(self, slot: str, slot_lsn: Lsn, log: str, log_lsn: Lsn) -> None:
        super().__init__(
            f'replication slot "{slot}" is at {slot_lsn}, past the end of the log at {log_lsn}',
            remedy=f"Changes in between cannot be had any more. Start a new log: {new_log(log)}",
            slot=slot,
            slot_lsn=slot_lsn,
            log_lsn=log_lsn,
        )


class SlotLimitReached(SourceError):
    """The server has no free replication slot or walsender."""


class SlotBeforePublication(SourceError):
    """The slot is there but its publication is not: the slot's WAL starts too early."""

    def __init__(self, slot: str, publication: str) -> None:
        super().__init__(
            f'replication slot "{slot}" exists, but publication "{publication}" does not',
            remedy=(
                "Changes made before a publication exists cannot be decoded with it, not even "
                "when it is created later: correct `publication` in [source], or start a new log: "
                + new_log()
            ),
            slot=slot,
            publication=publication,
        )


class ServerIsStandby(SourceError):
    """The server is a standby, where nothing can be set up."""


class NotPublishable(SourceError):
    """A view, an unlogged table or the like: its changes are not in the logical WAL."""


class UnsafeIdentity(SourceError):
    """The table cannot be published as it is: the application's own writes would fail."""


class SetupBlocked(SourceError):
    """Set-up waited too long for a lock or for open transactions."""


class TableRewritten(SourceError):
    """A table was rewritten or truncated while a snapshot of it was taken."""


class SetupFailed(SourceError):
    """The server refused a statement of set-up or tear-down."""


class ProtocolViolation(SourceError):
    """The server sent bytes that the protocol does not allow."""

    def __init__(self, what: str, *, byte_pos: int, kind: str | None = None) -> None:
        message = f"message {kind!r}" if kind else "message"
        super().__init__(
            f"{what} at byte {byte_pos} of a replication {message}",
            remedy="Check that the server is PostgreSQL 14 or newer, and report this as a bug",
            byte_pos=byte_pos,
            kind=kind,
        )


class DocumentInvalid(SourceError):
    """wal2json sent a document that cannot be read. The error does not hold any of it."""

    lsn: Lsn

    def __init__(self, what: str, *, lsn: Lsn, at: int | None = None) -> None:
        """`at`: the character where reading it ended."""
        where = "" if at is None else f", at character {at}"
        super().__init__(
            f"the document of wal2json for the WAL at {lsn} {what}{where}",
            remedy=(
                "Nothing was confirmed. Check that the slot is read with Penstock's options and "
                'that wal2json is 2.5 or newer, or set plugin = "pgoutput" in [source], which '
                "needs a slot of its own"
            ),
            lsn=lsn,
            at=at,
        )


class DocumentTooLarge(SourceError):
    """A transaction does not fit into one document of wal2json's format 1."""

    def __init__(self, slot: str) -> None:
        super().__init__(
            f'slot "{slot}" has a transaction that wal2json cannot write as one document: format 1 '
            "puts a whole transaction into one, and PostgreSQL has no text above 1 GB",
            remedy=(
                "Nothing was confirmed. Set wal2json_format = 2 in [poll], which has a document "
                'for each change, or plugin = "pgoutput" in [source], which needs a slot of its own'
            ),
            slot=slot,
        )


class NumberNotInJson(SourceError):
    """A column that has no NULL came as null: wal2json writes NaN and the infinities so."""

    lsn: Lsn

    def __init__(self, table: TableName, column: str, *, lsn: Lsn) -> None:
        super().__init__(
            f"column {column} of {table} holds NaN or an infinity in the change at {lsn}, which "
            "wal2json writes as null",
            remedy=(
                'Nothing was confirmed. Set plugin = "pgoutput" in [source], which needs a slot of '
                "its own"
            ),
            table=table,
            column=column,
            lsn=lsn,
        )


# --- change log ---------------------------------------------------------------------------------


class LogError(PenstockError):
    """The change log."""


class LogCorrupt(LogError):
    """Damage before the tail of the log."""

    def __init__(self, path: str, byte_pos: int, what: str) -> None:
        """`path`: the damaged file, in the log's folder."""
        super().__init__(
            f"change log {path} is damaged at byte {byte_pos}: {what}",
            remedy=f"Start a new log: {new_log(str(PurePath(path).parent))}",
            path=path,
            byte_pos=byte_pos,
        )


class LogNotWritten(LogError):
    """The disk is full or failed; nothing is confirmed that is not on it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"change log {path} cannot be written: {reason}",
            remedy="Make room or mend the disk; nothing is lost, and capture goes on by itself",
            path=path,
        )


class LogNotContinued(LogError):
    """The log was refused before, for a reason that is not known any more."""

    def __init__(self, problem: str, remedy: str | None = None) -> None:
        super().__init__(problem, remedy=remedy or f"Start a new log: {new_log()}")


class LogFull(LogNotWritten):
    """There is no room for the log; it goes on by itself when there is."""


class LogUnwritable(LogError):
    """The log's directory is not one that this user can write to."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"the change log cannot be opened for writing in {path}: {reason}",
            remedy="Correct `path` in [log], or let the user who runs capture write there",
            path=path,
        )


class LogFolderUnsafe(LogUnwritable):
    """Another user could change the log's files, or choose where we write."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.remedy = (
            "Let `path` in [log] name a folder that does not exist yet: Penstock makes it for its "
            "own user alone"
        )


class LogOfAnotherUser(LogFolderUnsafe):
    """A folder or a file of the log has another owner."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "it belongs to another user")
        self.remedy = f"Run this as that user. {self.remedy}"


class LogOpenToOthers(LogFolderUnsafe):
    """Others than the log's owner may write to one of its folders."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "others may write to it")
        self.remedy += f". Or, if all files in it are yours: chmod go-w {shlex.quote(path)}"


class SpillFailed(LogError):
    """The disk is full or failed where transactions wait for their commit."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"an uncommitted transaction cannot be kept in {path}: {reason}",
            remedy="Make room or mend the disk: nothing is lost, for none of it was confirmed",
            path=path,
        )


class LogUnreadable(LogError):
    """A file of the log is there and cannot be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read: {reason}",
            remedy="The log's files belong to the user who captures: read them as that user",
            path=path,
        )


class LogAtBudget(LogError):
    """The log is as large as it may be, and its consumers need what is there."""

    def __init__(self, path: str, max_bytes: int) -> None:
        super().__init__(
            f"change log {path} has reached its disk budget of {max_bytes:,} bytes",
            remedy=(
                "Capture goes on by itself when its consumers have come further; "
                "`penstock log consumers` names them, and max_gib in [log] leaves more room"
            ),
            path=path,
        )


class LogMissing(LogError):
    """There is no change log at that path."""


class LogForeign(LogError):
    """The directory holds something else than a change log of this kind."""


class LogFormatUnknown(LogError):
    """The log, or a file of it, was written by a newer version."""

    def __init__(self, path: str, version: int, *, readable: int) -> None:
        super().__init__(
            f"change log {path} has format {version}, "
            f"and this version of Penstock reads up to {readable}",
            remedy="Upgrade Penstock, or name another directory in [log]",
            path=path,
            version=version,
        )


class LogInUse(LogError):
    """Another process writes to the log."""


class LogFenced(LogError):
    """Another writer has taken over since; this one must not write any more."""


class LogRetired(LogError):
    """The log no longer goes back so far: retention has removed that part."""


class LogBehind(LogError):
    """The log ends, as this machine sees it, before what another one has planned to read."""

    def __init__(self, path: str, seen_lsn: Lsn, planned_lsn: Lsn) -> None:
        super().__init__(
            f"the change log in {path} is complete up to {seen_lsn} only, as this machine sees it, "
            f"and it is to be read up to {planned_lsn}",
            remedy=(
                "Mount the storage that machines share so that each sees at once what another has "
                "written (NFS: noac). If there is but one machine, the log was restored from an "
                "older copy: seed the targets again"
            ),
            path=path,
            seen_lsn=seen_lsn,
            planned_lsn=planned_lsn,
        )


class ConsumerInvalidated(LogError):
    """The log reached its disk budget and released what this consumer had not applied."""

    def __init__(self, consumer: str) -> None:
        super().__init__(
            f'consumer "{consumer}" was released when the change log reached its disk budget',
            remedy="Seed its target again; a larger max_gib in [log] leaves it more time",
            consumer=consumer,
        )


class ConsumerUnwritable(LogError):
    """A consumer cannot say in the log what it has applied."""

    def __init__(self, consumer: str, path: str, reason: str) -> None:
        super().__init__(
            f'consumer "{consumer}" cannot be registered in the change log in {path}: {reason}',
            remedy=(
                "Run the query as the user who captures, or leave out the option consumer: then "
                "retention does not wait for the query"
            ),
            consumer=consumer,
            path=path,
        )


class ConsumerUnknown(LogError):
    """Nobody of that name is registered."""

    def __init__(self, consumer: str, known: list[str]) -> None:
        super().__init__(
            f'no consumer "{consumer}" is registered',
            remedy=f"The registered ones are: {', '.join(known) or 'none'}",
            consumer=consumer,
        )


class LogForeignPosition(LogError):
    """A position of another log, or beyond this one's end."""


# --- pipeline -----------------------------------------------------------------------------------


class PipelineError(PenstockError):
    """What reads the log: Spark sources and pipelines."""


class SchemaMismatch(PipelineError):
    """The table in the log is not what the pipeline expects."""


class InputUnfit(PipelineError):
    """A table or column that an aggregate reads is missing, is not sent, or cannot be counted or
    summed.
    """

    table: TableName | None = None
    column: str = ""


class OldValuesMissing(PipelineError):
    """The replica identity leaves out old values that an aggregate must subtract."""

    # The statements that put them into the WAL; None if none is safe for the application.
    sql: PrintedSql | None
    # Or the partition.
    table: TableName
    # Such changes are known by what they lack, and are skipped. Else the root's identity promises
    # more than the partition writes: nothing tells, and the job is refused.
    skipped: bool


class AggregateStopped(PipelineError):
    """An aggregate has stopped until it is seeded again; `code` says why."""

    aggregate: str
    code: str


class QueryStopped(PipelineError):
    """Somebody else has stopped a job's query."""


class PartitionDiffers(PipelineError):
    """A partition's replica identity holds less than its root's, which the stream does not tell."""

    roots: tuple[TableName, ...]


class TargetClash(PipelineError):
    """A target is a source too, or another aggregate's."""


class BadOption(PipelineError):
    """An option of the Spark source is unknown, missing or has a bad value."""


class ValueUnrepresentable(PipelineError):
    """A column holds a value that its type outside of Postgres cannot hold."""


class TableTruncated(PipelineError):
    """A table was emptied, and the reader did not say what that should mean."""


class SessionShared(PipelineError):
    """A pooler gives our sessions to others between transactions."""


class TargetMismatch(PipelineError):
    """A target table is missing, or is not what its aggregate needs."""


class ProgressGap(PipelineError):
    """A target is behind where a batch begins: to go on would leave changes out."""


class PipelineFenced(PipelineError):
    """Another job works on the same aggregate."""


class ComputationFailed(PipelineError):
    """Spark could not compute an expression, or failed itself."""

    # Spark's own log says more than this error does.
    in_spark_log: bool = False


class SeedingUnderWay(PipelineError):
    """Somebody else seeds the same aggregate."""


class NotSeeded(PipelineError):
    """An aggregate has no position yet, or one for another declaration or another log."""


class TargetUnavailable(PipelineError):
    """A target's database cannot be reached, or does not let us write."""


class NotVerifiable(PipelineError):
    """No query over the source could tell what an aggregate should be."""


class VerifyTimeout(PipelineError):
    """The log did not reach the snapshot that an audit begins with."""
