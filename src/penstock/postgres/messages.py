"""What pgoutput says, as immutable values. `pgoutput` makes them from bytes; capture reads them.

Stage: postgres, pure. Fields keep the order of the wire, except `xid`, which comes last in the
messages that carry one only inside a streamed chunk: there it names the (sub)transaction that made
the change, and a Stream Abort of that xid takes it back; elsewhere it is None.

Moments are `…_us`: microseconds since 2000-01-01 UTC, as sent. Beside each is a property that is a
`datetime`, or None where `datetime` has no such year. None is no protocol error: a commit takes its
time from `pg_replication_origin_xact_setup()`, and servers send `infinity` if that was set.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from penstock.lsn import Lsn

_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def moment(since_2000_us: int) -> datetime | None:
    """A Postgres timestamp as UTC, or None outside the years 1 to 9999 (`infinity` is one such).

    >>> moment(789_000).isoformat()
    '2000-01-01T00:00:00.789000+00:00'
    >>> moment(2**63 - 1) is None
    True
    """
    try:
        return _POSTGRES_EPOCH + timedelta(microseconds=since_2000_us)
    except OverflowError:
        return None


class Unchanged(Enum):
    """The type of `UNCHANGED`; an enum, for it stays one object when pickled or copied."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""A TOASTed value that the update did not touch and the WAL does not hold. It is not NULL."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A value in its type's binary form. Wrapped, so that nobody takes it for text."""

    data: bytes


Value: TypeAlias = bytes | Binary | Unchanged | None
"""One column: text as the server wrote it, binary, `UNCHANGED`, or NULL."""

Row: TypeAlias = tuple[Value, ...]
"""One value for each column of the relation, in its order."""

ReplicaIdentity: TypeAlias = Literal["d", "n", "f", "i"]
"""DEFAULT (the primary key), NOTHING, FULL, or USING INDEX."""


# --- transactions that arrive whole -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a transaction whose commit is known; `final_lsn` is the start of that record."""

    final_lsn: Lsn
    committed_us: int
    xid: int

    @property
    def committed_at(self) -> datetime | None:
        return moment(self.committed_us)


@dataclass(frozen=True, slots=True)
class Commit:
    """End of a transaction: the commit record is at `lsn`, and `end_lsn` is what we confirm."""

    lsn: Lsn
    end_lsn: Lsn
    committed_us: int

    @property
    def committed_at(self) -> datetime | None:
        return moment(self.committed_us)


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was replicated from elsewhere. In a streamed chunk `origin_lsn` is 0/0."""

    origin_lsn: Lsn
    name: str


# --- what the changes are about -----------------------------------------------------------------


# A flag of ours beside those of the server.
IN_PRIMARY_KEY = 128


@dataclass(frozen=True, slots=True)
class Column:
    """One published column; `in_identity` says whether an old key has a value for it.

    `in_primary_key` is told only where the identity is another one, and only in the log: capture
    adds it.
    """

    in_identity: bool
    name: str
    type_oid: int
    type_modifier: int
    in_primary_key: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the changes that follow describe it, until the next Relation with its oid."""

    oid: int
    namespace: str
    name: str
    replica_identity: ReplicaIdentity
    columns: tuple[Column, ...]
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """A type that is not built in. A domain's oid comes with the name of its base type."""

    oid: int
    namespace: str
    name: str
    xid: int | None = None


# --- changes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_oid: int
    new: Row
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row, with its old identity (`old_key`), the whole old row (`old_row`) or neither.

    Neither means that the identity did not change. In `old_key` the columns outside the identity
    are None, whatever they held: only `Column.in_identity` tells those from NULL.
    """

    relation_oid: int
    old_key: Row | None
    old_row: Row | None
    new: Row
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A removed row: exactly one of `old_key` and `old_row` is there, read as in `Update`."""

    relation_oid: int
    old_key: Row | None
    old_row: Row | None
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables emptied by one command."""

    cascade: bool
    restart_identity: bool
    relation_oids: tuple[int, ...]
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """From `pg_logical_emit_message()`; `lsn` is the end of its record.

    In a chunk, `xid` is that of the *top* transaction even if a savepoint's subtransaction wrote
    the message, so a Stream Abort of the subtransaction does not point at it.
    """

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None


# --- transactions streamed before their end is known --------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A chunk of `xid` begins; `first` is true for the transaction's first on this connection."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The chunk ends."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """The streamed transaction `xid` committed: positions as in `Commit`."""

    xid: int
    lsn: Lsn
    end_lsn: Lsn
    committed_us: int

    @property
    def committed_at(self) -> datetime | None:
        return moment(self.committed_us)


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """`subxid` of the transaction `xid` rolled back; all of it, if the two are equal.

    Place and time are sent with `streaming 'parallel'` only, and may be 0: the server gives up a
    transaction that a crash ended without having a record of its abort.
    """

    xid: int
    subxid: int
    abort_lsn: Lsn | None = None
    aborted_us: int | None = None

    @property
    def aborted_at(self) -> datetime | None:
        return None if self.aborted_us is None else moment(self.aborted_us)


# --- two-phase commit ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The three messages about PREPARE TRANSACTION; `lsn` is the start of its record."""

    lsn: Lsn
    end_lsn: Lsn
    prepared_us: int
    xid: int
    gid: str

    @property
    def prepared_at(self) -> datetime | None:
        return moment(self.prepared_us)


@dataclass(frozen=True, slots=True)
class BeginPrepare(_Prepared):
    """Start of a transaction that ends in Prepare instead of Commit."""


@dataclass(frozen=True, slots=True)
class Prepare(_Prepared):
    """End of the changes of a prepared transaction."""


@dataclass(frozen=True, slots=True)
class StreamPrepare(_Prepared):
    """The streamed transaction `xid` was prepared."""


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """COMMIT PREPARED: positions as in `Commit`."""

    lsn: Lsn
    end_lsn: Lsn
    committed_us: int
    xid: int
    gid: str

    @property
    def committed_at(self) -> datetime | None:
        return moment(self.committed_us)


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """ROLLBACK PREPARED: both positions are ends of records."""

    prepare_end_lsn: Lsn
    rollback_end_lsn: Lsn
    prepared_us: int
    rolled_back_us: int
    xid: int
    gid: str

    @property
    def prepared_at(self) -> datetime | None:
        return moment(self.prepared_us)

    @property
    def rolled_back_at(self) -> datetime | None:
        return moment(self.rolled_back_us)


Message: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | StreamPrepare
    | CommitPrepared
    | RollbackPrepared
)
