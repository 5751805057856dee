"""One aggregate's connection to its target: held by one job at a time, opened again when lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import psycopg
import structlog

from penstock.backoff import Backoff
from penstock.changelog import consumers
from penstock.changelog.reader import LogReader
from penstock.closing import Closing
from penstock.declarations import AggregateConfig
from penstock.decode.stops import Stop, StopCode
from penstock.errors import (
    ConnectionLost,
    ConsumerInvalidated,
    LogInUse,
    LogNotWritten,
    LogRetired,
    NotSeeded,
    PenstockError,
    PipelineFenced,
)
from penstock.lasting_state import LastingState
from penstock.lsn import ZERO, Lsn
from penstock.pipelines import staging
from penstock.pipelines.applying import (
    Aggregate,
    Applied,
    Batch,
    apply,
    locked_progress,
    retry,
)
from penstock.pipelines.bookkeeping import (
    Progress,
    claim,
    keep,
    read_progress,
    read_source_marks,
    read_stop,
    write_source_marks,
    write_stop,
)
from penstock.pipelines.deciding import Covered, of_another_log
from penstock.pipelines.held_log import consumer_of
from penstock.pipelines.locks import is_locked, try_lock
from penstock.pipelines.parking import next_try_s
from penstock.pipelines.passing import meaning, passes
from penstock.pipelines.ready import require_bookkeeping, require_targets
from penstock.pipelines.seeding import begin, hold
from penstock.pipelines.source_marks import Marks
from penstock.pipelines.target_session import connect_target
from penstock.pipelines.target_tables import read_targets, unusable
from penstock.pipelines.targets import Tables
from penstock.sections import Dsn
from penstock.words import duration

_LOG = structlog.get_logger()
# A job that was killed a moment ago may still be known to the server.
_CLAIM_S = 10.0
# Somebody may have locked the target: other targets wait for it so long, and no longer.
_WAIT_S = 5.0
_REGISTER_EVERY_S = 1.0
# Refused keys are looked at when the first is due. Also if there is none: a process that seeds or
# repairs may have parked some.
_LOOK_SOONEST_S = 1.0
_LOOK_LATEST_S = 60.0
# More may be due than are tried at once; a batch may come between.
_GO_ON_S = 0.2
# If the target is away or locked.
_LOOK_AGAIN_S = 10.0
# At an aggregate that has stopped: a reset is a command that a person waits for.
_LOOK_STOPPED_S = 1.0


@dataclass(frozen=True, slots=True)
class Noted:
    """The sources of an aggregate, as they were when it was seeded or somebody looked last."""

    seeded_at: str | None
    # None: nobody has looked yet.
    marks: Marks | None


def _is_same(progress: Progress, aggregate: Aggregate, noted: Noted) -> bool:
    """Whether it was not seeded since then, nor taken over."""
    is_ours = progress.epoch == aggregate.epoch and progress.state != "seeding"
    return is_ours and progress.seeded_at == noted.seeded_at


class Writer(Closing):
    """Applies batches to one aggregate; with `stopping` set it waits for no other job."""

    def __init__(
        self,
        config: AggregateConfig,
        dsn: Dsn,
        tables: Tables,
        log: LogReader,
        stopping: threading.Event,
    ) -> None:
        self.config = config
        self.name = config.name
        self.dsn = dsn
        # The sources, by whose types the targets are checked.
        self.tables = tables
        self._log = log
        self._log_id = str(log.identity.log_id)
        self._stopping = stopping
        self._connection: psycopg.Connection[Any] | None = None
        self._aggregate: Aggregate | None = None
        self._registered_at = 0.0
        self._registered_lsn = Lsn(0)
        self._backoff = Backoff()
        # Why the target could not be written to the last time, and when to try again.
        self.away: Exception | None = None
        self._try_at = 0.0
        # Transient errors by their event in the log: the reason, and since when.
        self._lasting: dict[str, tuple[str, LastingState]] = {}
        # Batches and retries come from two threads.
        self._in_use = threading.Lock()
        self._look_at = 0.0
        self._back_at = 0.0
        # Others go on while it is away, or reads what it missed.
        self.is_behind = False
        self.needs_seed = False
        self.applied_lsn = Lsn(0)
        # Why it applies nothing until it is seeded again, and since when the target says so.
        self.stop: Stop | None = None
        self._unwritten: Stop | None = None
        self._noted: Noted | None = None
        self.stopped_since: str | None = None
        # Why it cannot be followed, which is looked at again; nothing is lost meanwhile.
        self.trouble: PenstockError | None = None

    @property
    def follows(self) -> bool:
        """Whether batches are for it; also while its target is away or it is being seeded."""
        return self.stop is None and self.trouble is None

    def __enter__(self) -> Self:
        self.claim()
        return self

    def claim(self) -> None:
        """Take the aggregate, for one job at a time; look at its targets again if it has it.

        If the target is away, it is claimed when it comes.
        """
        with self._at_first(), self._in_use:
            known = self._aggregate
            connection, _ = self._connected()
            if known is not None and self.stop is None:
                require_targets(connection, self.config, self.tables)
                # It may have been seeded since it was applied to last.
                if (progress := read_progress(connection, self.name)) is not None:
                    self.needs_seed = progress.state == "seeding"
                    if not self.needs_seed:
                        self.applied_lsn = progress.applied_lsn

    def check(self) -> None:
        """Raises what would keep it from being claimed until a person mends it; changes nothing."""
        with self._at_first(), self._connect() as connection:
            require_targets(connection, self.config, self.tables)
            progress = read_progress(connection, self.name)
            if progress is not None and progress.state != "seeding":
                self._check(progress)

    def has_begun(self) -> bool:
        """Whether its targets hold anything by now, so that changes can be lost to them."""
        if self._aggregate is not None:
            return not self.needs_seed
        progress = None
        with self._at_first(), self._connect() as connection:
            require_bookkeeping(connection, self.config)
            self._read_stop(connection)
            progress = read_progress(connection, self.name)
        return progress is not None and progress.state != "seeding"

    def is_settled(self) -> bool:
        """Return whether no change can be lost to it before it is seeded from what is there then.

        So it is if its target holds a stop, or if it was never seeded and is not being seeded.
        """
        has_stop = is_free = False
        with self._at_first(), self._connect() as connection:
            progress = read_progress(connection, self.name)
            has_begun = progress is not None and (
                progress.state != "seeding" or progress.seeded_at is not None
            )
            has_stop = read_stop(connection, self.name) is not None
            is_free = not (has_begun or is_locked(connection, "seeding", self.name))
        return has_stop or is_free

    def noted(self) -> Noted | None:
        """What its sources were; None: its target is away, or it is being seeded."""
        found = None
        with self._at_first(), self._in_use:
            connection, _ = self._connected()
            with connection.transaction():
                progress = locked_progress(connection, self.name)
                if progress is not None and progress.state != "seeding":
                    marks = read_source_marks(connection, self.name)
                    found = Noted(progress.seeded_at, marks)
        return found

    def note_marks(self, before: Noted, marks: Marks) -> None:
        """Note what its sources are, unless a seeding has done so meanwhile."""
        with self._at_first(), self._in_use:
            connection, aggregate = self._connected()
            with connection.transaction():
                progress = locked_progress(connection, self.name)
                if progress is not None and _is_same(progress, aggregate, before):
                    write_source_marks(connection, self.name, marks)

    def fail(self, error: PenstockError) -> None:
        """Leave it, until somebody has corrected what is wrong; nothing is lost meanwhile."""
        with self._in_use:
            self.trouble = error
            self.is_behind = True
            # An earlier outage is over, or the next look finds it again.
            self.away = None
            self.close()
            self._aggregate = None

    def stop_for(self, stop: Stop, noted: Noted | None = None) -> None:
        """Stop until it is seeded again. Written to the target at once, or when it is there again.

        Not one that is being seeded, or was since it was noted: nothing is lost to it.
        """
        self.stop = self._unwritten = stop
        self._noted = noted
        with self._at_first(), self._in_use:
            self._write_stop()

    def _write_stop(self) -> None:
        connection, aggregate = self._connected()
        with connection.transaction():
            progress = locked_progress(connection, self.name)
            if progress is None:
                raise NotSeeded(
                    f"aggregate {self.name} has no position: its row in penstock.progress is gone",
                    remedy=f"Run: penstock reset {self.name}",
                    aggregate=self.name,
                )
            if progress.epoch != aggregate.epoch:
                raise self._fenced()
            is_same = self._noted is None or _is_same(progress, aggregate, self._noted)
            if self._unwritten is not None and is_same and progress.state != "seeding":
                write_stop(connection, self.name, self._unwritten)
        self._unwritten = None
        self._note_stop(connection)

    def _note_stop(self, connection: psycopg.Connection[Any]) -> None:
        """Read the stop of the target, which may be another and older one, or none at all.

        The log is not kept for an aggregate that begins anew when it comes back. A reset that has
        begun has the log keep what it needs: with the row locked, none begins meanwhile.
        """
        with connection.transaction():
            progress = locked_progress(connection, self.name)
            self._read_stop(connection)
            if self.stop is not None and progress is not None and progress.state != "seeding":
                consumers.forget(self._log.storage, consumer_of(self.name))
                self._registered_lsn = ZERO

    def _read_stop(self, connection: psycopg.Connection[Any]) -> None:
        found = read_stop(connection, self.name)
        self.stop = found.stop if found is not None else self._unwritten
        self.stopped_since = found.since if found is not None else None

    def is_back(self) -> bool:
        """Whether one that had stopped has been seeded again. Called often, beside `apply`."""
        if time.monotonic() < self._back_at or not self._in_use.acquire(blocking=False):
            return False
        self._back_at = time.monotonic() + _LOOK_STOPPED_S
        try:
            with self._at_first():
                if self._unwritten is not None:
                    self._write_stop()
                connection, _ = self._connected()
                self._read_stop(connection)
                progress = read_progress(connection, self.name)
                # A reset that was broken off is taken up by the job.
                self.needs_seed = progress is not None and progress.state == "seeding"
                if self.stop is None:
                    self.is_behind = True
                    if progress is not None and not self.needs_seed:
                        self.applied_lsn = progress.applied_lsn
                    return True
        finally:
            self._in_use.release()
        return False

    @contextmanager
    def _at_first(self) -> Iterator[None]:
        """What passes by itself is noted."""
        try:
            with self._told():
                yield
        except Exception as error:
            if not passes(error):
                raise
            self._leave(error)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the target refuses for good is one of our own errors."""
        try:
            yield
        except psycopg.Error as error:
            if passes(error):
                raise
            raise unusable(self.name, error) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def apply(
        self,
        covered: Covered,
        compute: Callable[[], Batch],
        read_again: Callable[[Covered], tuple[Batch, Lsn]],
        summed_after: Lsn = ZERO,
    ) -> Applied | None:
        """None: the target is away, or was so a moment ago; what it misses is read again later,
        in portions. `summed_after`: where what is computed begins at the earliest.
        """
        if time.monotonic() < self._try_at:
            return None
        try:
            with self._in_use, self._told():
                connection, aggregate = self._connected()
                if self.stop is not None:  # it was so when its target came back
                    return None
                left_at = self.applied_lsn if self.is_behind else None
                applied = apply(
                    *(connection, aggregate, covered, compute, read_again),
                    summed_after=summed_after,
                    left_at=left_at,
                )
        except Exception as error:
            if not passes(error):
                raise
            self._report("target not written, trying again", error)
            self._leave(error)
            return None
        self._note(applied, covered.end)
        if applied.stop is not None:
            self.stop = applied.stop
            with self._at_first(), self._in_use:
                self._note_stop(connection)
        return applied

    def retry(self) -> None:
        """Try again what the target refused, when it is due, although no batch comes.

        Called often, beside `apply` and by another thread; one of the two has the connection at a
        time. A batch tries what is due itself, and one that finds its target away comes again.
        """
        if self.away or not self.follows or time.monotonic() < self._look_at:
            return
        if not self._in_use.acquire(blocking=False):
            return
        try:
            with self._told():
                self._look()
        except Exception as error:
            if not passes(error):
                raise
            # Not as with a batch: nothing is missed.
            self._report("parked keys are retried later", error)
            self._look_at = time.monotonic() + _LOOK_AGAIN_S
        finally:
            self._in_use.release()

    def _look(self) -> None:
        connection, aggregate = self._connected()
        due_s = next_try_s(connection, self.name)
        if due_s is None:
            due_s = _LOOK_LATEST_S
        pause_s = min(max(due_s, _LOOK_SOONEST_S), _LOOK_LATEST_S)
        if due_s <= 0:
            tried = retry(connection, aggregate, self._log_id)
            # Of those that are refused again, nothing: they were told, and `doctor` tells them.
            self._tell_sums(tried)
            if tried.decision == "apply":
                pause_s = _GO_ON_S
        self._look_at = time.monotonic() + pause_s
        self._lasting.pop("parked keys are retried later", None)

    def _report(self, event: str, error: Exception) -> None:
        """Log a transient error when it begins or changes, and then at a slow pace."""
        now, reason = time.monotonic(), meaning(error)
        before, state = self._lasting.get(event, ("", LastingState()))
        self._lasting[event] = reason, state
        if state.begin(now) | state.is_due(now) | (reason != before):
            age_s = state.age_s(now)
            facts = {**_codes(error), **({"for": duration(age_s)} if age_s >= 1 else {})}
            _LOG.warning(event, aggregate=self.name, reason=reason, **facts)

    def _leave(self, error: Exception) -> None:
        self.away = error
        self.is_behind = True
        self._try_at = time.monotonic() + self._backoff.pause_s()
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            # A session keeps to what it began with. A new one may write, or reach another server.
            self.close()

    def _note(self, applied: Applied, end: Lsn) -> None:
        if self.away:
            _LOG.info("target written again", aggregate=self.name)
            self.away = None
            self._backoff.reset()
            self._lasting.clear()
        self.needs_seed = applied.decision == "wait"
        self.is_behind = applied.decision == "read" and applied.end < end
        if applied.decision not in ("wait", "stop"):
            self.applied_lsn = applied.end
        if applied.parked:
            self._look_at = 0.0
            _LOG.warning("keys parked", aggregate=self.name, keys=applied.parked)
        self._tell_sums(applied)

    def _tell_sums(self, applied: Applied) -> None:
        if applied.below_zero and self.config.seed:
            _LOG.error("counts below zero", aggregate=self.name, keys=applied.below_zero)
        elif applied.below_zero:
            # As it should be: rows go that were there before it began to count.
            _LOG.info("counts kept at zero", aggregate=self.name, keys=applied.below_zero)

    def _connected(self) -> tuple[psycopg.Connection[Any], Aggregate]:
        connection = self._connection
        if connection is None or connection.closed or connection.broken:
            connection = self._connect()
            with _closed_if_it_fails(connection):
                if self._aggregate is None:
                    self._aggregate = self._claimed(connection)
                else:
                    self._lock_again(connection, self._aggregate.epoch)
            self._connection = connection
        assert self._aggregate is not None  # noqa: S101 - a connection is kept when it is claimed
        return connection, self._aggregate

    def _connect(self) -> psycopg.Connection[Any]:
        return connect_target(self.dsn, lock_timeout_s=_WAIT_S)

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        """One job at a time; the lock goes with the connection, the epoch stays."""
        deadline = time.monotonic() + _CLAIM_S
        while True:
            if try_lock(connection, "job", self.name):
                return
            if time.monotonic() > deadline or self._stopping.wait(0.2):
                raise self._fenced()

    def _fenced(self) -> PipelineFenced:
        return PipelineFenced(
            f"another job works on aggregate {self.name}",
            remedy="Stop it first: one job follows all aggregates of a log",
            aggregate=self.name,
        )

    def _lock_again(self, connection: psycopg.Connection[Any], epoch: int) -> None:
        """The server may take our own lost session for alive, until its network says otherwise."""
        if try_lock(connection, "job", self.name):
            return
        progress = read_progress(connection, self.name)
        if progress is None or progress.epoch != epoch:
            raise self._fenced()
        raise ConnectionLost(
            f"the lock of aggregate {self.name} is still held by a session that we lost",
            remedy="Wait until the server notices, or end that session",
        )

    def _claimed(self, connection: psycopg.Connection[Any]) -> Aggregate:
        require_bookkeeping(connection, self.config)
        self._lock(connection)
        self._read_stop(connection)
        if self.stop is None:
            require_targets(connection, self.config, self.tables)
        staging.clear(connection, self.name)
        targets = read_targets(connection, self.config)
        if read_progress(connection, self.name) is None:
            self._begin(connection)
        with connection.transaction():
            connection.execute(
                "UPDATE penstock.progress SET epoch = epoch + 1 WHERE aggregate = %s", [self.name]
            )
            progress = read_progress(connection, self.name)
            assert progress is not None  # noqa: S101 - it was there just now
            self.needs_seed = progress.state == "seeding"
            self._note_stop(connection)
            # A reset that is under way frees what the aggregate had when it is done.
            take = claim if self.needs_seed else keep
            take(connection, self.name, [each.table for each in self.config.targets])
        if not self.needs_seed and self.stop is None:
            # A seeding notes where it begins, and takes it back if it fails: the targets may be
            # further behind.
            self.applied_lsn = progress.applied_lsn
            self._check(progress)
        return Aggregate(
            self.name, targets, self.config.seed, progress.epoch, self.config.fingerprint
        )

    def _begin(self, connection: psycopg.Connection[Any]) -> None:
        """Without seeding, what counts begins now."""
        end = self._log.end().lsn
        with connection.transaction():
            begin(connection, self.config, self._log_id, end)
            if not self.config.seed:
                connection.execute(
                    "UPDATE penstock.progress SET state = 'live' WHERE aggregate = %s", [self.name]
                )
            # Before it commits: whoever finds the row takes it for begun.
            hold(self.name, self._log, end)

    def _check(self, progress: Progress) -> None:
        if progress.fingerprint != self.config.fingerprint:
            raise NotSeeded(
                f"aggregate {self.name} is declared differently than when it was seeded",
                remedy=f"Run: penstock reset {self.name}",
                aggregate=self.name,
            )
        if progress.log_id != self._log_id:
            raise NotSeeded(
                f"aggregate {self.name} is at a position of log {progress.log_id}, and "
                f"{self._log.where} is log {self._log_id}",
                remedy=of_another_log(self.name),
                aggregate=self.name,
            )
        if progress.state == "seeded" and progress.applied_lsn > self._log.end().lsn:
            return  # its snapshot is further on than capture, which comes there
        try:
            self._log.locate(progress.applied_lsn)
        except LogRetired:
            raise NotSeeded(
                f"the log no longer holds what comes after {progress.applied_lsn}, where aggregate "
                f"{self.name} is",
                remedy=f"Run: penstock reset {self.name}",
                aggregate=self.name,
            ) from None

    def register(self, needed_lsn: Lsn) -> None:
        """Let the log go of what is applied; nothing beyond `needed_lsn`, for the job needs it.

        Called now and then, beside `apply`: it costs a sync, and when nothing comes any more the
        last batch must be told too, for capture may wait for just that.
        """
        if self.needs_seed or self.stop is not None:
            return  # the seeding has told where it begins, or will
        position = min(self.applied_lsn, needed_lsn)
        now = time.monotonic()
        if position <= self._registered_lsn or now < self._registered_at + _REGISTER_EVERY_S:
            return
        self._registered_at = now
        try:
            consumers.register(self._log.storage, consumer_of(self.name), self._log_id, position)
        except ConsumerInvalidated:
            self.stop_for(Stop(StopCode.RELEASED))
        except (LogNotWritten, LogInUse) as error:
            # The disk is full, perhaps. Nothing is lost: the target knows its position.
            _LOG.warning("position not told to the log", aggregate=self.name, reason=str(error))
        else:
            self._registered_lsn = position


def _codes(error: Exception) -> dict[str, str]:
    """Return the error's class and SQLSTATE; the text of a server may hold a value of a row."""
    kind = {"error": type(error).__name__}
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        return {**kind, "sqlstate": error.sqlstate}
    return kind


@contextmanager
def _closed_if_it_fails(connection: psycopg.Connection[Any]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise
