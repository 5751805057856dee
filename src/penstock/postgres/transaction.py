"""A committed transaction as a value, all of it in memory: for tests, tools and small ones.

It decodes by itself: every change stands behind the Relation message that was in force when it was
received. The payloads are pgoutput's, in the form without an xid, so that a transaction is the same
whether it was streamed or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.lsn import Lsn
from penstock.postgres.messages import Delete, Insert, Relation, Truncate, Update
from penstock.postgres.pgoutput import Decoder

Change: TypeAlias = Insert | Update | Delete | Truncate


@dataclass(frozen=True, slots=True)
class Transaction:
    xid: int
    commit_lsn: Lsn
    committed_us: int
    payloads: tuple[bytes, ...]

    def changes(self) -> Iterator[tuple[Change, Mapping[int, Relation]]]:
        return changes_of(self.payloads)


def changes_of(payloads: Iterable[bytes]) -> Iterator[tuple[Change, Mapping[int, Relation]]]:
    """Changes in order (the n-th has seq n), each with the tables as they then were."""
    decoder = Decoder(1, "off")
    relations: dict[int, Relation] = {}
    for payload in payloads:
        message = decoder.decode(payload)
        match message:
            case Relation():
                relations[message.oid] = message
            case Insert() | Update() | Delete() | Truncate():
                yield message, relations
            case _:
                raise TypeError(f"{type(message).__name__} is not a change")
