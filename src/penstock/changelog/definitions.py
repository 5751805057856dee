"""How each table looked, as the server described it. Pure.

A definition is a Relation message and the Type messages of its columns. It is known by its content:
the server repeats itself after aborts and invalidations, and that is not a new version.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import ProtocolViolation
from penstock.postgres.messages import Relation, Type
from penstock.postgres.pgoutput import Decoder


class Definitions:
    """What one connection has described so far."""

    def __init__(self) -> None:
        self._decoder = Decoder(1, "off")
        self._types: dict[int, bytes] = {}
        self._in_force: dict[int, tuple[bytes, ...]] = {}
        # The tables whose definition has the newest Types.
        self._current: set[int] = set()

    def take(self, payload: bytes) -> Iterator[tuple[int, tuple[bytes, ...], bool]]:
        """Note a Relation or Type; yields a table, its definition, and whether that is news."""
        # The server repeats it after each rollback of a streamed subtransaction, perhaps 300,000
        # times in one transaction: one copy is kept, and it is not decoded again.
        described = int.from_bytes(payload[1:5], "big")
        if described in self._current and self._in_force[described][0] == payload:
            yield described, self._in_force[described], False
            return
        match self._decoder.decode(payload):
            case Type(oid=oid):
                if self._types.get(oid) != payload:
                    self._current.clear()
                self._types[oid] = payload
            case Relation(oid=oid, columns=columns):
                oids = dict.fromkeys(column.type_oid for column in columns)
                types = (self._types[oid] for oid in oids if oid in self._types)
                content = (payload, *types)
                is_news = self._in_force.get(oid) != content
                self._in_force[oid] = content
                self._current.add(oid)
                yield oid, content, is_news
            case other:
                raise ProtocolViolation(
                    f"a {type(other).__name__} describes nothing", byte_pos=0, kind=chr(payload[0])
                )

    def in_force(self) -> dict[int, tuple[bytes, ...]]:
        """The newest definition of each table."""
        return dict(self._in_force)
