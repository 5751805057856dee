"""What to say on a replication connection, and when. Pure: messages and the time in, decisions out.

`connection.py` owns the socket and asks this module; `capture` says what has become durable.

The three positions, each at most the one before it:

    received_lsn    every commit that ends at or below it has been received
    durable_lsn     … and is in the log, which has also noted the position itself
    confirmed_lsn   … and the server was told that it may forget it

**Keepalive rule** (M1.3). A keepalive says that the server has sent everything up to `wal_end`. It
moves `received_lsn` only when no transaction is half received: not between Begin and Commit, nor
inside a streamed chunk. A transaction that is being streamed, between two of its chunks, does not
count: Postgres keeps what it needs and sends it all again after a reconnect. The position still
has to become durable before it is confirmed, and so does every message before it.

All positions are running maxima: after a reconnect the server's keepalives start further back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import ConnectionLost, ConnectionStale, ProtocolViolation, ServerShutdown
from penstock.lsn import Lsn
from penstock.postgres.envelope import (
    KEEPALIVE,
    PAYLOAD_POS,
    XLOG_DATA,
    Keepalive,
    StatusUpdate,
)

# pgoutput messages that neither begin nor end anything.
_INNER = frozenset(b"IUDTMRYOA")
# Kind and flags before the two LSNs of a Commit; kind, xid and flags in a Stream Commit.
_COMMIT_END_POS = PAYLOAD_POS + 10
_STREAM_COMMIT_END_POS = PAYLOAD_POS + 14

# Replies to one and the same request before it counts as the storm of a server shutting down.
_STORM_REPEATS = 5
_STORM_REPLY_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class SessionSettings:
    # The server's own, for this session: it may be silent for half of it while it is busy.
    wal_sender_timeout_s: float = 20.0
    # After so much silence we ask for the server's position.
    keepalive_interval_s: float = 2.0
    # No activity at all for so long: the connection is dead. Longer than the server's silence.
    stale_timeout_s: float = 600.0
    # Progress is reported at most this often: more would only cost the server locks.
    confirm_interval_s: float = 0.1
    # What a server that shuts down waits for us at most, while we cannot confirm.
    shutdown_grace_s: float = 5.0

    def __post_init__(self) -> None:
        if self.stale_timeout_s <= self.wal_sender_timeout_s / 2:
            raise ValueError("stale_timeout_s must be more than half of wal_sender_timeout_s")

    @property
    def status_interval_s(self) -> float:
        """So often the server hears from us although nothing moves; it hangs up after 3 misses."""
        return min(10.0, self.wal_sender_timeout_s / 3)

    @property
    def healthy_silence_s(self) -> float:
        """A server that is asked answers within this time, even if it decodes one large commit."""
        return self.keepalive_interval_s + self.wal_sender_timeout_s / 2

    @property
    def storm_window_s(self) -> float:
        """Requests closer together than this cannot come from the server's timeout."""
        return min(1.0, self.wal_sender_timeout_s / 4)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to ask again if nothing arrives."""

    send: StatusUpdate | None
    give_up: ConnectionLost | None
    wake_at: float


class ReplicationSession:
    """One connection's state. Times are seconds of any clock that never goes back."""

    def __init__(self, durable_lsn: Lsn, settings: SessionSettings, *, now: float) -> None:
        """`durable_lsn`: the log's position, from which replication was started."""
        self._settings = settings
        self.received_lsn = durable_lsn
        self.durable_lsn = durable_lsn
        self.confirmed_lsn = durable_lsn
        # The server's position as far as it told us; for showing lag only.
        self.server_lsn = durable_lsn
        self._inside: str | None = None
        self._last_activity = now
        self._last_heartbeat = now
        self._last_status = now
        self._last_question = now
        self._reply_owed = False
        # The newest request for a reply: its position, its time, and how often it came again.
        self._request_lsn = Lsn(0)
        self._request_at = now
        self._request_repeats = 0
        self._storm_since: float | None = None

    @property
    def half_received(self) -> bool:
        """A transaction, or a chunk of a streamed one, has begun and not ended."""
        return self._inside is not None

    @property
    def shutting_down(self) -> bool:
        """The server waits for our last confirmation before it stops."""
        return self._storm_since is not None

    def receive(self, run: Sequence[memoryview | bytes], now: float) -> None:
        """Take note of a run of CopyData messages, in order.

        The hot path of capture: the common row messages cost two look-ups.
        """
        if run:
            self._last_activity = now
        for view in run:
            try:
                if view[0] == XLOG_DATA:
                    kind = view[PAYLOAD_POS]
                    if kind not in _INNER:
                        self._boundary(kind, view)
                elif view[0] == KEEPALIVE:
                    self._keepalive(Keepalive.parse(view), now)
                else:
                    raise ProtocolViolation(
                        "an unknown kind of message", byte_pos=0, kind=chr(view[0])
                    )
            except IndexError:
                raise ProtocolViolation("the message ends too early", byte_pos=len(view)) from None

    def made_durable(self, up_to: Lsn) -> None:
        """The log holds everything up to here, and the position itself, after a good fsync."""
        if up_to > self.received_lsn:
            raise RuntimeError(f"{up_to} cannot be durable: only {self.received_lsn} was received")
        self.durable_lsn = max(self.durable_lsn, up_to)

    def heartbeat_received(self, now: float) -> None:
        self._last_heartbeat = now

    def silent_s(self, now: float) -> float:
        """Return for how long the server has sent nothing, if that is too long; else 0."""
        silent_s = now - self._last_activity
        return silent_s if silent_s > self._settings.healthy_silence_s else 0.0

    def decide(self, now: float) -> Decision:
        """What to do at `now`; an update that is returned counts as sent."""
        settings = self._settings
        if self._stale_at() <= now:
            return self._give_up(
                ConnectionStale(
                    f"nothing was received from the server for {settings.stale_timeout_s:g} s",
                    remedy="Penstock connects again; check the network if this repeats",
                ),
                now,
            )
        if self._grace_ends_at() <= now:
            return self._give_up(
                ServerShutdown(
                    "the server is shutting down and what it sent last could not be made durable "
                    f"within {settings.shutdown_grace_s:g} s",
                    remedy="Nothing is lost: it is sent again after the restart",
                ),
                now,
            )
        question = self._question_due() <= now
        if question or self._status_due() <= now:
            return Decision(self._status(question, now), None, self._wake_at(now))
        return Decision(None, None, self._wake_at(now))

    def final_status(self, now: float) -> StatusUpdate:
        """The last word before we leave: what is durable by now."""
        return self._status(False, now)

    def _boundary(self, kind: int, view: memoryview | bytes) -> None:
        """Begin or end of a transaction or chunk."""
        match kind:
            case 0x42:  # B, Begin
                self._enter("transaction", kind)
            case 0x53:  # S, Stream Start
                self._enter("chunk", kind)
            case 0x43:  # C, Commit
                self._leave("transaction", kind)
                self._committed(view, _COMMIT_END_POS)
            case 0x45:  # E, Stream Stop
                self._leave("chunk", kind)
            case 0x63:  # c, Stream Commit
                self._leave(None, kind)
                self._committed(view, _STREAM_COMMIT_END_POS)
            case _:
                raise ProtocolViolation(
                    "an unexpected message", byte_pos=PAYLOAD_POS, kind=chr(kind)
                )

    def _enter(self, what: str, kind: int) -> None:
        if self._inside is not None:
            raise ProtocolViolation(
                f"a {what} begins inside a {self._inside}", byte_pos=PAYLOAD_POS, kind=chr(kind)
            )
        self._inside = what

    def _leave(self, what: str | None, kind: int) -> None:
        if self._inside != what:
            raise ProtocolViolation(
                f"an end outside its {what or 'place'}", byte_pos=PAYLOAD_POS, kind=chr(kind)
            )
        self._inside = None

    def _committed(self, view: memoryview | bytes, end_pos: int) -> None:
        if len(view) < end_pos + 8:
            raise ProtocolViolation("the message ends too early", byte_pos=len(view))
        end_lsn = int.from_bytes(view[end_pos : end_pos + 8], "big")
        if end_lsn > self.received_lsn:
            self.received_lsn = Lsn(end_lsn)

    def _keepalive(self, keepalive: Keepalive, now: float) -> None:
        wal_end = keepalive.wal_end
        self.server_lsn = max(self.server_lsn, wal_end)
        if self._inside is None and wal_end > self.received_lsn:
            self.received_lsn = wal_end
        if keepalive.reply_requested:
            self._reply_owed = True
            self._watch_for_storm(wal_end, now)

    def _watch_for_storm(self, wal_end: Lsn, now: float) -> None:
        """A server that shuts down asks again as fast as it is answered, until we confirm.

        Answering each time would block its shutdown for ever at some 20,000 requests a second.
        """
        again = (
            wal_end == self._request_lsn and now - self._request_at < self._settings.storm_window_s
        )
        self._request_repeats = self._request_repeats + 1 if again else 0
        self._request_lsn = wal_end
        self._request_at = now
        if self._request_repeats < _STORM_REPEATS:
            self._storm_since = None
        elif self._storm_since is None:
            self._storm_since = now

    def _stale_at(self) -> float:
        return max(self._last_activity, self._last_heartbeat) + self._settings.stale_timeout_s

    def _grace_ends_at(self) -> float:
        """When we have held up a shutdown for long enough; never, if all it wants is durable."""
        if self._storm_since is None or self.durable_lsn >= self._request_lsn:
            return math.inf
        return self._storm_since + self._settings.shutdown_grace_s

    def _status_due(self) -> float:
        """When the next update must go out, for whatever reason comes first."""
        due = self._last_status + self._settings.status_interval_s
        if self.durable_lsn > self.confirmed_lsn:
            # A server that waits for this to stop gets it at once.
            pause = 0.0 if self.shutting_down else self._settings.confirm_interval_s
            due = min(due, self._last_status + pause)
        if self._reply_owed:
            pause = _STORM_REPLY_INTERVAL_S if self.shutting_down else 0.0
            due = min(due, self._last_status + pause)
        return due

    def _question_due(self) -> float:
        """When to ask the server for its position, because it has been silent."""
        interval = self._settings.keepalive_interval_s
        return max(self._last_activity, self._last_question) + interval

    def _status(self, question: bool, now: float) -> StatusUpdate:
        self.confirmed_lsn = max(self.confirmed_lsn, self.durable_lsn)
        self._last_status = now
        self._reply_owed = False
        if question:
            self._last_question = now
        return StatusUpdate(self.received_lsn, self.confirmed_lsn, question)

    def _wake_at(self, now: float) -> float:
        due = min(self._status_due(), self._question_due(), self._stale_at(), self._grace_ends_at())
        return max(now, due)

    def _give_up(self, why: ConnectionLost, now: float) -> Decision:
        return Decision(None, why, now)
