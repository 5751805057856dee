"""Capture: follows one slot into one log, for ever, connecting again after what may pass.

A crash anywhere loses nothing: whatever was not confirmed comes again, from the log's own position,
and a commit that the log has already is dropped.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from shutil import disk_usage

import structlog

from penstock.backoff import Backoff
from penstock.capture.abandoning import Abandoned, unless_stopped
from penstock.capture.disk_forecast import DiskForecast, DiskUse
from penstock.capture.heartbeat import PREFIX, HeartbeatMeter, heartbeats
from penstock.capture.policy import Patience, ScheduledRetries
from penstock.capture.primary_keys import PrimaryKeys
from penstock.capture.pump import Pump
from penstock.capture.start import check_log, check_source
from penstock.capture.telling import Telling
from penstock.changelog.identity import FILE as LOG_FILE
from penstock.changelog.identity import LogIdentity
from penstock.changelog.maintenance import Pruned
from penstock.changelog.refusal import check_not_refused, kept_refusals
from penstock.changelog.settings import log_settings, retention_settings
from penstock.changelog.storage import LocalStorage
from penstock.changelog.tables import read_tables
from penstock.changelog.writer import LogWriter
from penstock.config import Config
from penstock.errors import PenstockError, PublicationMissing, SlotMissing
from penstock.lsn import ZERO, Lsn
from penstock.postgres.connection import ReplicationConnection
from penstock.postgres.polling.connection import PollingConnection, PollSettings
from penstock.postgres.polling.plugins import Pgoutput, PollPlugin, Wal2json
from penstock.postgres.session import ReplicationSession, SessionSettings
from penstock.postgres.slots import SlotFacts
from penstock.postgres.source_connection import SourceConnection
from penstock.words import duration

# A state that lasts so long is logged with its age and remedy.
_LONG_S = 60.0

_log = structlog.get_logger(__name__)


class Capture:
    """One source, one slot, one log. `run` in one thread; `stop` from anywhere."""

    def __init__(self, config: Config) -> None:
        self._source = config.source
        self._poll = config.poll
        self._log = config.log
        self._heartbeat_interval_s = config.heartbeat.interval_min * 60
        self._settings = SessionSettings(
            wal_sender_timeout_s=config.source.wal_sender_timeout_s,
            keepalive_interval_s=config.source.keepalive_interval_s,
            # To poll, a peek may decode for long without a word; a dead connection is found by TCP.
            stale_timeout_s=math.inf if self._is_polling else config.heartbeat.timeout_min * 60,
            # To poll, the next run waits for it.
            confirm_interval_s=0.0 if self._is_polling else 0.1,
        )
        self._stop = threading.Event()
        self._connection: SourceConnection | None = None
        self._telling = Telling()
        retention = retention_settings(config.log)
        self._forecast = DiskForecast(retention.history_bytes, retention.max_bytes)
        # For those who watch: the newest session, heartbeats, and how often we connected.
        self.session: ReplicationSession | None = None
        self.heartbeat = HeartbeatMeter(owner=f"{config.source.slot}")
        self.connections = 0

    def stop(self) -> None:
        """Ask for a clean end; safe in other threads and in signal handlers."""
        self._stop.set()
        if (connection := self._connection) is not None:
            connection.wake()

    def run(self) -> None:
        """Capture until `stop`; raises only what an operator must mend."""
        patience = Patience(
            wal_sender_timeout_s=self._settings.wal_sender_timeout_s,
            backoff=ScheduledRetries(self._poll.retries, self._poll.interval_s)
            if self._is_polling
            else Backoff(),
        )
        with heartbeats(self._source.conninfo, self._heartbeat_interval_s, self.heartbeat):
            while not self._stop.is_set():
                durable_before, connections_before = self._durable_lsn, self.connections
                try:
                    self._follow()
                except Abandoned:
                    break
                except PenstockError as error:
                    if self.connections > connections_before:
                        patience.connected()
                    if self._durable_lsn > durable_before:
                        patience.progressed()
                    now = time.monotonic()
                    pause_s = patience.pause_s(self._in_context(error), now)
                    self._report(error, pause_s, patience.gives_up_in_s(now), now)
                    self._stop.wait(pause_s)
        _log.info("stopped", durable_lsn=str(self._durable_lsn))

    def _report(
        self, error: PenstockError, pause_s: float, gives_up_in_s: float | None, now: float
    ) -> None:
        """Log why capture connects again: once for each reason, then at a slow pace."""
        is_news = self._telling.failed(error, now)
        facts: dict[str, object] = {"reason": error.problem, "pause_s": round(pause_s, 2)}
        if gives_up_in_s is not None:
            facts["gives_up_in_s"] = round(gives_up_in_s)
        if (down_s := self._telling.down_s(now)) >= _LONG_S:
            facts |= {"down_for": duration(down_s), "remedy": error.remedy}
        _log.log(logging.WARNING if is_news else logging.DEBUG, "reconnecting", **facts)

    def _in_context(self, error: PenstockError) -> PenstockError:
        """A missing slot or publication means more if there is a log that it fed.

        So the remedy is the same when capture is started again, by whomever.
        """
        if not (self._log.path / LOG_FILE).exists():
            return error
        log = str(self._log.path)
        match error:
            case SlotMissing():
                return SlotMissing(self._source.slot, log)
            case PublicationMissing(while_running=while_running):
                publication = self._source.publication
                return PublicationMissing(publication, log, while_running=while_running)
        return error

    @property
    def _durable_lsn(self) -> Lsn:
        return self.session.durable_lsn if self.session else ZERO

    @property
    def _is_polling(self) -> bool:
        return self._source.mode == "poll"

    def _follow(self) -> None:
        """One connection, from start to end."""
        check_not_refused(LocalStorage(self._log.path))
        with ExitStack() as stack:
            if self._is_polling:
                # First: who loses the lock leaves at once, whatever the winner does to the slot.
                connection = self._opened(stack, self._polled)
                slot = unless_stopped(self._stop, lambda: check_source(self._source))
            else:
                slot = unless_stopped(self._stop, lambda: check_source(self._source))
                connection = self._opened(stack, self._replicated)
            self._capture(connection, slot)

    def _opened(
        self, stack: ExitStack, connect: Callable[[], SourceConnection]
    ) -> SourceConnection:
        opened = unless_stopped(self._stop, connect, undo=lambda each: each.close())
        return stack.enter_context(opened)

    def _replicated(self) -> SourceConnection:
        return ReplicationConnection(
            self._source.conninfo, wal_sender_timeout_s=self._settings.wal_sender_timeout_s
        )

    def _polled(self) -> SourceConnection:
        beats = bool(self._heartbeat_interval_s)
        plugin: PollPlugin = Pgoutput(self._source.publication, messages=beats)
        if self._source.plugin == "wal2json":
            plugin = Wal2json(
                self._poll.wal2json_format,
                [table.name for table in self._source.tables],
                lambda: [entry.messages for entry in read_tables(LocalStorage(self._log.path))],
                message_prefix=PREFIX if beats else None,
            )
        settings = PollSettings(self._poll.interval_s, self._poll.max_changes)
        return PollingConnection(
            self._source.conninfo, self._source.slot, plugin, settings, log=str(self._log.path)
        )

    def _capture(self, connection: SourceConnection, slot: SlotFacts) -> None:
        """Bring what comes to the log, until the connection ends."""
        server = connection.identify()
        new = LogIdentity.new(
            system_id=server.system_id,
            timeline=server.timeline,
            database=server.database,
            slot=slot.name,
            start_lsn=slot.confirmed_lsn or ZERO,
        )
        keys = PrimaryKeys(self._source.conninfo)
        log = LogWriter(self._log.path, new, log_settings(self._log))
        if log.identity is new:
            # If one was expected (a volume that is not mounted?) this is where to see it.
            _log.info("new_log", path=str(self._log.path), from_lsn=str(new.start_lsn))
        try:
            check_log(log, connection, server, slot)
            start_lsn = log.complete_lsn
            now = time.monotonic()
            self.session = ReplicationSession(start_lsn, self._settings, now=now)
            pump = Pump(
                connection,
                self.session,
                log,
                retention_settings(self._log),
                self.heartbeat,
                self._stop,
                on_durable=lambda: self._following(start_lsn, news=self._telling.durable()),
                on_pruned=self._warn_of_full_disk,
                described=keys.marked,
                watches_silence=not self._is_polling,
                on_first_message=lambda: self._following(start_lsn, news=self._telling.connected()),
            )
            pump.keep_small(now)
            connection.start(
                self._source.slot,
                self._source.publication,
                start_lsn,
                messages=bool(self._heartbeat_interval_s),
            )
            self.connections += 1
            if not self._is_polling:  # whose first run shows whether the slot can be read
                self._following(start_lsn, news=self._telling.connected())
            self._connection = connection
            with log.failures(), kept_refusals(log.storage):
                pump.run()
        finally:
            self._connection = None
            keys.close()
            log.close()

    def _warn_of_full_disk(self, pruned: Pruned, now: float) -> None:
        with suppress(OSError):  # what is wrong with the disk is reported when it is written to
            free_bytes = disk_usage(self._log.path).free
            use = DiskUse(pruned.log_bytes, pruned.history_bytes, free_bytes)
            if (facts := self._forecast.warning(use, now)) is not None:
                _log.warning("the disk of the log is filling", **facts)

    def _following(self, start_lsn: Lsn, *, news: bool) -> None:
        if news:
            _log.info("following", slot=self._source.slot, from_lsn=str(start_lsn))
