"""Random tables and changes of their rows, as a server would write them, in runs of the log."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from penstock.changelog.runs import PADDING, Run
from penstock.postgres.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    Message,
    Relation,
    ReplicaIdentity,
    Row,
    Truncate,
    Update,
    Value,
)
from support.pgoutput_encoder import encode

Texts = Callable[[random.Random], str]


def _number(low: int, high: int) -> Texts:
    return lambda chance: str(chance.choice([low, high, 0, chance.randint(low, high)]))


def _one_of(*texts: str) -> Texts:
    return lambda chance: chance.choice(texts)


def _words(chance: random.Random) -> str:
    return "".join(chance.choices('abc äé"\\{},\n\t🐘NUL', k=chance.choice([0, 1, 3, 12, 13, 40])))


def _hex(chance: random.Random) -> str:
    return "\\x" + chance.randbytes(chance.choice([0, 1, 5, 20])).hex()


def _quoted(chance: random.Random) -> str:
    def element() -> str:
        text = _words(chance).replace("\\", "\\\\").replace('"', '\\"')
        return chance.choice(["NULL", f'"{text}"', "bare"])

    return "{" + ",".join(element() for _ in range(chance.randint(0, 4))) + "}"


# Oid, modifier, and texts that a server would send.
KINDS: dict[str, tuple[int, int, Texts]] = {
    "bool": (16, -1, _one_of("t", "f")),
    "int2": (21, -1, _number(-(2**15), 2**15 - 1)),
    "int4": (23, -1, _number(-(2**31), 2**31 - 1)),
    "int8": (20, -1, _number(-(2**63), 2**63 - 1)),
    "oid": (26, -1, _number(0, 2**32 - 1)),
    "float4": (700, -1, _one_of("0.1", "-0", "NaN", "Infinity", "-Infinity", "3.4028235e+38")),
    "float8": (701, -1, _one_of("0.1", "-0", "NaN", "Infinity", "5e-324", "1e+308")),
    "numeric(10,2)": (1700, (10 << 16) + 2 + 4, _one_of("0.00", "-99999999.99", "NaN", "1.50")),
    "numeric(3,-2)": (1700, (3 << 16) + (-2 & 0x7FF) + 4, _one_of("99900", "-100", "Infinity")),
    "numeric": (1700, -1, _one_of("0", "1e5", "NaN", "123456789012345678901234567890123456789.1")),
    "text": (25, -1, _words),
    "uuid": (2950, -1, _one_of("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")),
    "bytea": (17, -1, _hex),
    "date": (1082, -1, _one_of("2026-11-16", "0001-01-01", "9999-12-31", "infinity", "-infinity",
                               "0044-03-15 BC", "10000-01-01")),
    "timestamp": (1114, -1, _one_of("2026-11-16 12:34:56.789012", "0001-01-01 00:00:00", "infinity",
                                    "9999-12-31 23:59:59.999999", "0044-03-15 01:02:03 BC",
                                    "2026-11-16 12:34:56.7", "12026-11-16 12:34:56", "-infinity")),
    "timestamptz": (1184, -1, _one_of("2026-11-16 12:34:56.789012+00", "0001-01-01 00:00:00+00",
                                      "infinity", "0044-03-15 01:02:03+00 BC",
                                      "2026-11-16 12:34:56+05:30", "2026-11-16 12:34:56-03",
                                      "12026-11-16 12:34:56+00")),
    "interval": (1186, -1, _one_of("1 day 02:00:00", "-1 mons")),
    "int4[]": (1007, -1, _one_of("{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[0:1]={1,2}", "{7}")),
    "numeric(5,1)[]": (1231, (5 << 16) + 1 + 4, _one_of("{}", "{1.5,NULL}", "{NaN}", "{1.0}")),
    "date[]": (1182, -1, _one_of("{2026-11-16,NULL}", "{infinity}", "{}")),
    "text[]": (1009, -1, _quoted),
    "plain text[]": (1015, -1, _one_of("{}", "{a,b}", "{NULL}", "{x}")),
    "bytea[]": (1001, -1, _one_of('{"\\\\x00ff"}', "{}", "{NULL}")),
    "money": (790, -1, _one_of("$1.00")),
}  # fmt: skip


def random_table(chance: random.Random, oid: int, name: str) -> tuple[Relation, list[Texts]]:
    kinds = chance.choices(list(KINDS.values()), k=chance.randint(1, 7))
    whole = chance.random() < 0.3
    columns = tuple(
        Column(whole or chance.random() < 0.4, f"c{index}", oid_of, modifier)
        for index, (oid_of, modifier, _) in enumerate(kinds)
    )
    identity: ReplicaIdentity = "f" if whole else "d"
    return Relation(oid, "public", name, identity, columns), [texts for _, _, texts in kinds]


def random_change(chance: random.Random, relation: Relation, texts: list[Texts]) -> Message:
    def value(text: Texts) -> Value:
        return None if chance.random() < 0.2 else text(chance).encode()

    def row() -> Row:
        return tuple(value(text) for text in texts)

    def key() -> Row:
        """Of a partition with another identity than its root it has more, or less."""
        more = chance.random() < 0.2
        pairs = zip(relation.columns, texts, strict=True)
        return tuple(value(text) if more or column.in_identity else None for column, text in pairs)

    def with_toast(new: Row) -> Row:
        return tuple(UNCHANGED if chance.random() < 0.2 else value for value in new)

    old_key = old_row = None
    if relation.replica_identity == "f":
        old_row = row()
    else:
        old_key = key()
    match chance.choice(["insert", "update", "update", "delete", "truncate"]):
        case "insert":
            return Insert(relation.oid, row())
        case "delete":
            return Delete(relation.oid, old_key, old_row)
        case "truncate":
            return Truncate(False, False, (relation.oid,))
        case _:
            if chance.random() < 0.5:
                old_key = old_row = None
            return Update(relation.oid, old_key, old_row, with_toast(row()))


def random_history(
    chance: random.Random, count: int
) -> tuple[list[Message], dict[str, list[Relation]]]:
    """Changes of two tables that are described anew, and renamed, in between; what had each name.

    A description stands among the changes, before those that it is about.
    """
    tables = {oid: random_table(chance, oid, name) for oid, name in ((1, "t"), (2, "other"))}
    messages: list[Message] = [relation for relation, _ in tables.values()]
    named: dict[str, list[Relation]] = {}
    for _ in range(count):
        oid = chance.choice(list(tables))
        relation, texts = tables[oid]
        if chance.random() < 0.15:
            # Another name, and a column more or fewer.
            kept = chance.randint(1, len(relation.columns))
            name = chance.choice(["t", "other", "third"])
            if name in {other.name for each, (other, _) in tables.items() if each != oid}:
                name = f"{name}_of_{oid}"
            relation = replace(relation, name=name, columns=relation.columns[:kept])
            tables[oid] = relation, texts[:kept]
            messages.append(relation)
        elif chance.random() < 0.2:
            oids = chance.sample(list(tables), k=chance.randint(1, len(tables)))
            messages.append(Truncate(False, False, tuple(oids)))
        else:
            messages.append(random_change(chance, relation, texts))
    for message in messages:
        if isinstance(message, Relation):
            named.setdefault(message.name, []).append(message)
    return messages, named


def run_of(
    chance: random.Random,
    changes: Sequence[Message],
    definitions: Sequence[Sequence[Message]] = (),
) -> Run:
    """Changes of one commit each, some streamed; a Relation among them is in force from there on.

    `definitions` are in force from the start.
    """
    payloads: list[bytes] = []
    streamed, ordinals = [], []
    emptied: list[tuple[int, int]] = []
    known = [tuple(encode(message) for message in group) for group in definitions]
    by_oid = {group[0].oid: n for n, group in enumerate(definitions)}  # type: ignore[union-attr]
    for change in changes:
        if isinstance(change, Relation):
            by_oid[change.oid] = len(known)
            known.append((encode(change),))
            continue
        is_streamed = chance.random() < 0.3
        given = replace(change, xid=9) if is_streamed else change  # type: ignore[arg-type]
        if isinstance(change, Truncate):
            emptied += [(len(payloads), by_oid[oid]) for oid in change.relation_oids]
        payloads.append(encode(given))
        streamed.append(is_streamed)
        oid = getattr(change, "relation_oid", None)
        ordinals.append(-1 if oid is None else by_oid[oid])
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    ends = np.cumsum(sizes)
    count = len(payloads)
    return Run(
        b"".join((*payloads, PADDING)),
        ends - sizes,
        ends,
        np.array(streamed, bool),
        np.arange(1000, 1000 + count, dtype=np.uint64),
        np.arange(count, dtype=np.int64) * 1_000_001,
        np.full(count, 9, np.int64),
        np.arange(count, dtype=np.int64),
        np.array(ordinals, np.int32),
        tuple(emptied),
        tuple(known),
    )
