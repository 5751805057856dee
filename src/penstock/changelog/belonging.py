"""Whether a log and a server belong together: nothing of one is foreign to the other. Pure."""

from __future__ import annotations

import re

from penstock.changelog.identity import LogIdentity
from penstock.errors import (
    OlderTimeline,
    ServerRewound,
    WrongServer,
    WrongSlot,
    WrongTimeline,
    new_log,
)
from penstock.lsn import Lsn
from penstock.postgres.system_identity import SystemIdentity


def check_server(log: LogIdentity, server: SystemIdentity, slot: str) -> None:
    if server.system_id != log.system_id or server.database != log.database:
        raise WrongServer(
            f'the log was written from database "{log.database}" of server {log.system_id}, '
            f'and this is "{server.database}" of {server.system_id}',
            remedy="Correct the DSN, or name another directory in [log] for a new log",
        )
    if log.slot != slot:
        # Another slot stands elsewhere and may have other tables: changes would be lost in between.
        raise WrongSlot(log.slot, slot)


def check_timeline(ours: int, theirs: int, history: str, durable_lsn: Lsn, log: str) -> None:
    """After a failover the new server must have left our timeline at or after our position.

    `log`: the folder of ours.
    """
    if theirs < ours:
        # The server that our timeline goes on with may be well: this refusal is not kept.
        raise OlderTimeline(
            f"the server is on timeline {theirs}, and the log has followed a failover to {ours}",
            remedy=(
                "Correct dsn in [source], so that it leads to the server that was promoted. If it "
                f"is gone, start a new log: {new_log(log)}"
            ),
            timeline=theirs,
        )
    switches = {
        int(match[1]): Lsn.parse(match[2])
        for match in re.finditer(r"^\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", history, re.MULTILINE)
    }
    switch = switches.get(ours)
    if switch is None or switch < durable_lsn:
        where = f"left timeline {ours} at {switch}" if switch else f"never was on timeline {ours}"
        raise WrongTimeline(
            f"the server is on timeline {theirs} and {where}, before our position {durable_lsn}",
            remedy=(
                "The log holds changes that this server does not have. Start a new one: "
                + new_log(log)
            ),
            timeline=theirs,
        )


def check_not_rewound(durable_lsn: Lsn, wal_end: Lsn, log: str) -> None:
    if wal_end < durable_lsn:
        raise _rewound(
            f"the server's WAL ends at {wal_end}, before our position {durable_lsn}", log
        )


def check_transaction_ids(highest_xid: int, server: SystemIdentity, log: str) -> None:
    """A server that has not yet given an id which the log knows cannot be where the log was."""
    next_xid = server.ids.next_xid
    if next_xid <= highest_xid:
        raise _rewound(
            f"the server's next transaction is {next_xid}, and the log knows {highest_xid} already",
            log,
        )


def _rewound(problem: str, log: str) -> ServerRewound:
    return ServerRewound(
        problem,
        remedy=(
            "The server was restored from an older image, so the log holds changes that it "
            f"no longer has. Start a new one: {new_log(log)}"
        ),
    )
