"""From the fragmenter's events to calls on the log: the one place that decides their order.

A fragment is appended before its commit is told (M3.2), and everything in the order received: a
description is in force for what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from penstock.changelog.log import ChangeLog
from penstock.lsn import Lsn
from penstock.postgres.fragments import Abort, Description, Event, Fragment, Signal


@dataclass(slots=True)
class Stored:
    """What is left to do with a run: its commits wait for a flush, its signals are not kept."""

    commits: list[Lsn] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)


def store(
    log: ChangeLog,
    events: Iterable[Event],
    described: Callable[[bytes], bytes] = lambda payload: payload,
) -> Stored:
    """Hand one run to the log. Nothing of it is durable on return.

    `described` adds to a description what only the catalog knows.
    """
    stored = Stored()
    for event in events:
        match event:
            case Fragment():
                if event.messages:
                    log.append(event)
                if event.commit is not None:
                    log.commit(event.xid, event.commit)
                    stored.commits.append(event.commit.lsn)
            case Description():
                log.describe(replace(event, payload=described(event.payload)))
            case Abort():
                log.abort(event)
            case Signal():
                stored.signals.append(event)
    return stored
