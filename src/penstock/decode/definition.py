"""A table as the server described it, with the types of its columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.decode.types import ValueType, value_type
from penstock.errors import ProtocolViolation
from penstock.names import TableName
from penstock.postgres.messages import Relation, Type
from penstock.postgres.pgoutput import Decoder


@dataclass(frozen=True, slots=True)
class Definition:
    relation: Relation
    types: tuple[ValueType, ...]

    @classmethod
    def parse(cls, messages: Sequence[bytes]) -> Definition:
        """From a Relation message and the Type messages that belong to it."""
        decoder = Decoder(1, "off")
        relation, *rest = (decoder.decode(message) for message in messages)
        if not isinstance(relation, Relation):
            raise ProtocolViolation("a definition is not that of a table", byte_pos=0)
        named = {told.oid: told for told in rest if isinstance(told, Type)}
        return cls(relation, tuple(value_type(column, named) for column in relation.columns))

    @property
    def table(self) -> TableName:
        return TableName(self.relation.namespace, self.relation.name)

    def index(self, column: str) -> int | None:
        names = [each.name for each in self.relation.columns]
        return names.index(column) if column in names else None
