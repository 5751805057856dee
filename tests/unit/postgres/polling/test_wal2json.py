"""Documents of wal2json become the records that pgoutput would have made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changelog.storage import LocalStorage
from penstock.changelog.tables import read_tables
from penstock.errors import DocumentInvalid, NumberNotInJson
from penstock.lsn import Lsn
from penstock.names import TableName
from penstock.postgres.envelope import PAYLOAD_POS
from penstock.postgres.fragments import Fragment, Fragmenter, Signal
from penstock.postgres.messages import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    Type,
    Update,
)
from penstock.postgres.pgoutput import Decoder
from penstock.postgres.polling import wal2json
from penstock.postgres.polling.wal2json import Translator
from penstock.postgres.polling.wal2json_documents import Document, document
from penstock.postgres.polling.wal2json_options import FormatVersion
from penstock.postgres.session import ReplicationSession, SessionSettings
from support.known_values import Image, images
from support.logs import read, write
from support.pgoutput_encoder import encode
from support.wal2json_writer import (
    Field,
    Row,
    RowChange,
    Source,
    begin_2,
    commit_2,
    control_2,
    format_1,
    format_2,
)

AT = Lsn(0x1555390)
END = Lsn(0x1555620)
ID = Field("id", "integer", 23, nullable=False)
BODY = Field("body", "text", 25, toasted=True)
AMOUNT = Field("amount", "numeric(10,2)", 1700, nullable=False)
NOTE = Field("note", "text", 25)
RATE = Field("rate", "double precision", 701)
TABLE = TableName("public", "items")
both_formats = pytest.mark.parametrize("version", [1, 2])


def source(*fields: Field, identity: Any = "d", key: Sequence[str] = ("id",)) -> Source:
    return Source(TABLE, fields, identity, tuple(key), ("id",))


ITEMS = source(ID, AMOUNT, NOTE)
PAGES = source(ID, BODY, NOTE)


def insert(table: Source, *values: bytes | None) -> RowChange:
    return RowChange("I", table, _row(table, values), {})


def update(
    table: Source, old: Sequence[bytes | None], *new: bytes | None, omitted: Iterable[str] = ()
) -> RowChange:
    return RowChange("U", table, _row(table, new), _row(table, old), frozenset(omitted))


def delete(table: Source, *values: bytes | None) -> RowChange:
    return RowChange("D", table, {}, _row(table, values))


def _row(table: Source, values: Sequence[bytes | None]) -> Row:
    return dict(zip((one.name for one in table.fields), values, strict=True))


def documents(version: FormatVersion, changes: Sequence[RowChange]) -> list[bytes]:
    """One transaction."""
    if version == 1:
        return [format_1(changes)]
    return [begin_2(), *map(format_2, changes), commit_2()]


def records(translator: Translator, texts: Iterable[bytes]) -> list[bytes]:
    return [record for text in texts for record in translator.feed(AT, text)]


def decoded(found: Iterable[bytes]) -> list[Message]:
    decoder = Decoder(1, "off")
    return [decoder.decode(record[PAYLOAD_POS:]) for record in found]


def translated(version: FormatVersion, *changes: RowChange) -> list[Message]:
    return decoded(records(Translator(version), documents(version, changes)))


def truth(change: RowChange) -> Image:
    new: dict[str, Any] = {
        name: UNCHANGED if name in change.omitted else value for name, value in change.new.items()
    }
    if change.kind == "I":
        return Image("I", new)
    is_full = change.source.identity == "f"
    old = {n: v for n, v in change.old.items() if is_full or n in change.source.key}
    return Image(change.kind, new, old)


# --- random changes -----------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
names = st.sampled_from(
    ["id", "Ö .*", 'q"uo\\te', "value", '"value":', "},{", "table", "a,b", "schema"]
)
digits = st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: f"{number:f}")
# Type, oid, whether it can be TOASTed, and its values as Postgres prints them.
TYPES: list[tuple[str, int, bool, st.SearchStrategy[str]]] = [
    ("integer", 23, False, st.integers(-(2**31), 2**31 - 1).map(str)),
    ("bigint", 20, False, st.integers(-(2**63), 2**63 - 1).map(str)),
    ("numeric", 1700, True, digits),
    ("double precision", 701, False, st.floats(allow_nan=False, allow_infinity=False).map(repr)),
    ("boolean", 16, False, st.sampled_from("tf")),
    ("text", 25, True, texts),
    ("jsonb", 3802, True, texts.map(json.dumps)),
    ("bytea", 17, True, st.binary(max_size=5).map(lambda data: "\\x" + data.hex())),
    ('public."Odd type"', 16500, True, texts),
    ("character varying(20)[]", 1015, True, texts),
]

IDENTITIES: list[Literal["d", "i", "f"]] = ["d", "i", "f"]


@st.composite
def sources(draw: st.DrawFn) -> tuple[Source, dict[str, st.SearchStrategy[str]]]:
    found, values = [], {}
    for name in draw(st.lists(names, min_size=1, max_size=5, unique=True)):
        text, oid, toasted, of_type = draw(st.sampled_from(TYPES))
        found.append(Field(name, text, oid, draw(st.booleans()), toasted))
        values[name] = of_type
    identity = draw(st.sampled_from(IDENTITIES))
    never_null = [one.name for one in found if not one.nullable]
    pk = tuple(never_null[:1])
    key = pk if identity == "d" else tuple(never_null)
    if not key:
        identity, key = "f", ()
    table = TableName(draw(st.sampled_from(["public", 'S"x'])), draw(names))
    return Source(table, tuple(found), identity, key, pk), values


@st.composite
def changes_of_one_table(draw: st.DrawFn) -> list[RowChange]:
    table, values = draw(sources())

    def row() -> Row:
        return {
            one.name: None
            if one.nullable and draw(st.booleans())
            else draw(values[one.name]).encode()
            for one in table.fields
        }

    changes = []
    for kind in draw(st.lists(st.sampled_from("IUD"), min_size=1, max_size=6)):
        new, old = row(), row()
        if draw(st.booleans()):
            new |= {name: old[name] for name in table.key}
        omitted = [
            one.name
            for one in table.fields
            if one.toasted and one.name not in table.key and old[one.name] is not None
        ]
        left_out = frozenset(draw(st.sets(st.sampled_from(omitted)))) if omitted else frozenset()
        if kind == "I":
            changes.append(RowChange("I", table, new, {}))
        elif kind == "U":
            new |= {name: old[name] for name in left_out}
            changes.append(RowChange("U", table, new, old, left_out))
        else:
            changes.append(RowChange("D", table, {}, old))
    return changes


@settings(max_examples=150, deadline=None)
@given(changes_of_one_table(), st.booleans())
def test_format_2_says_all_that_pgoutput_says(
    changes: list[RowChange], one_transaction: bool
) -> None:
    translator = Translator(2)
    transactions = [changes] if one_transaction else [[change] for change in changes]
    by_transaction = [records(translator, documents(2, each)) for each in transactions]
    found = [record for each in by_transaction for record in each]
    seen: set[str] = set()
    for change, image in zip(changes, images(decoded(found)), strict=True):
        expected = truth(change)
        if change.source.identity == "f" or change.kind == "I":
            seen = {one.name for one in change.source.fields}
        unknown = change.omitted - seen
        seen |= expected.new.keys() - change.omitted
        assert image.kind == expected.kind
        assert image.new == {n: v for n, v in expected.new.items() if n not in unknown}
        # A NULL number in the first delete of a table could be NaN, and is unknown.
        assert image.old.items() <= expected.old.items()
        assert all(expected.old[name] is None for name in expected.old.keys() - image.old.keys())
    for of_one, its_changes in zip(by_transaction, transactions, strict=True):
        assert_accepted(of_one, len(its_changes))


@settings(max_examples=150, deadline=None)
@given(changes_of_one_table(), st.booleans())
def test_format_1_says_nothing_that_is_wrong_and_keys_always(
    changes: list[RowChange], pretty: bool
) -> None:
    found = records(Translator(1), [format_1(changes, pretty=pretty)])
    seen: set[str] = set()
    nullable_known = False
    for change, image in zip(changes, images(decoded(found)), strict=True):
        expected = truth(change)
        if change.kind == "I":
            seen, nullable_known = {one.name for one in change.source.fields}, True
        unknown = change.omitted - seen
        assert image.kind == expected.kind
        shown = {n: v for n, v in image.new.items() if n in expected.new}
        assert shown == {n: v for n, v in expected.new.items() if n in shown}
        assert expected.new.keys() - image.new.keys() <= unknown
        assert image.old.items() <= expected.old.items()
        if (change.kind != "I" and change.source.identity != "f") or (
            nullable_known
            and any(
                one.nullable and expected.old.get(one.name) is not None
                for one in change.source.fields
            )
        ):
            assert image.old == expected.old
        seen |= image.new.keys() | image.old.keys()
    assert_accepted(found, len(changes))


def assert_accepted(found: list[bytes], changes: int) -> None:
    """The session and the fragmenter take them as a walsender's."""
    views = [memoryview(record) for record in found]
    session = ReplicationSession(Lsn(1), SessionSettings(), now=0.0)
    session.receive(views, 0.0)
    assert session.received_lsn == END
    fragments = [one for one in Fragmenter(Lsn(1)).feed(views) if isinstance(one, Fragment)]
    assert sum(fragment.changes for fragment in fragments) == changes


@settings(max_examples=150, deadline=None)
@given(changes_of_one_table(), changes_of_one_table(), st.booleans())
def test_a_document_that_is_matched_is_read_as_one_that_is_parsed(
    before: list[RowChange], after: list[RowChange], same_table: bool
) -> None:
    """Two tables, or one that was altered in between."""
    if same_table:
        name = before[0].source.name
        after = [replace(each, source=replace(each.source, name=name)) for each in after]
    parsing = Translator(2)
    parsing._shapes.record = lambda *_: None  # type: ignore[method-assign]
    matching = Translator(2)
    # Again, so that all shapes are known.
    changes = [*before, *before, *after, *before, *after]
    texts = [begin_2(), *map(format_2, changes), commit_2()]
    assert outcome(matching, texts) == outcome(parsing, texts)


def outcome(translator: Translator, texts: Sequence[bytes]) -> list[bytes | None]:
    """The records; None where a null is refused because the column had no NULL before."""
    found: list[bytes | None] = []
    for text in texts:
        try:
            found += translator.feed(AT, text)
        except NumberNotInJson:
            return [*found, None]
    return found


def test_documents_of_one_shape_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def counting(lsn: Lsn, data: bytes) -> Document:
        parsed.append(data)
        return document(lsn, data)

    monkeypatch.setattr(wal2json, "document", counting)
    rows = [insert(ITEMS, b"%d" % n, b"1.50", b"x" * n) for n in range(1000)]
    assert len(images(translated(2, *rows))) == 1000
    assert len(parsed) == 3  # with the Begin and the Commit


# --- values -------------------------------------------------------------------------------------


@both_formats
@pytest.mark.parametrize(
    "digits",
    [b"0.1000000000000000055511151231257827", b"-1" + b"0" * 300 + b".5", b"1e-320", b"3.00"],
)
def test_numbers_keep_their_digits(version: FormatVersion, digits: bytes) -> None:
    table = source(ID, Field("n", "numeric", 1700))
    assert images(translated(version, insert(table, b"1", digits)))[0].new["n"] == digits


@both_formats
@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
@pytest.mark.parametrize("field", [AMOUNT, replace(RATE, nullable=False)])
def test_a_number_that_json_does_not_have_is_refused_where_null_would_be_wrong(
    version: FormatVersion, value: bytes, field: Field
) -> None:
    table = source(ID, field)
    translator = Translator(version)
    assert records(translator, documents(version, [insert(table, b"1", b"2")]))
    with pytest.raises(NumberNotInJson, match=f"column {field.name} of public.items") as caught:
        records(translator, documents(version, [insert(table, b"2", value)]))
    assert caught.value.lsn == AT
    assert "pgoutput" in caught.value.remedy
    with pytest.raises(NumberNotInJson):
        records(Translator(version), documents(version, [insert(table, b"2", value)]))


@both_formats
def test_a_number_that_json_does_not_have_is_null_where_the_column_allows_it(
    version: FormatVersion,
) -> None:
    table = source(ID, RATE)
    found = images(translated(version, insert(table, b"1", b"NaN"), insert(table, b"2", None)))
    assert [image.new["rate"] for image in found] == [None, None]


@both_formats
def test_a_key_that_json_does_not_have_is_refused(version: FormatVersion) -> None:
    key = Field("id", "numeric", 1700, nullable=False)
    with pytest.raises(NumberNotInJson):
        translated(version, delete(source(key, NOTE), b"NaN", b"x"))


def test_format_1_knows_a_lost_number_in_an_old_row() -> None:
    """Where it leaves out NULL, null is something else."""
    table = source(ID, RATE, NOTE, identity="f")
    first = insert(table, b"1", b"1.5", b"x")
    with pytest.raises(NumberNotInJson):
        translated(1, first, delete(table, b"1", b"Infinity", b"x"))


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1.50", None])
def test_numbers_may_come_as_text(value: bytes | None) -> None:
    """With the option that wal2json 2.6 brought, nothing is lost."""
    # Two of the same, so that the second is matched.
    changes = [insert(source(ID, RATE), b"1", b"7777")] * 2
    changes += [insert(source(ID, RATE), b"1", b"8888")] * 2
    texts = [format_2(change).replace(b"7777", b'"1.25"') for change in changes[:2]]
    new = b"null" if value is None else b'"' + value + b'"'
    texts += [format_2(change).replace(b"8888", new) for change in changes[2:]]
    found = images(decoded(records(Translator(2), [begin_2(), *texts, commit_2()])))
    assert [image.new["rate"] for image in found] == [b"1.25", b"1.25", value, value]


@both_formats
def test_bytes_that_are_no_utf8_stay_as_they_are(version: FormatVersion) -> None:
    """A database in SQL_ASCII may hold them."""
    change = insert(ITEMS, b"1", b"1.00", b'\xff\xfe "quoted"')
    found = images(translated(version, change, change))
    assert [image.new["note"] for image in found] == [b'\xff\xfe "quoted"'] * 2


@both_formats
def test_control_characters_and_escapes_come_back(version: FormatVersion) -> None:
    text = bytes(range(1, 32)) + b'\\"/\x7f\xc3\xa9\\u0041'
    change = insert(ITEMS, b"1", b"1.00", text)
    assert [image.new["note"] for image in images(translated(version, change, change))] == [
        text
    ] * 2


# --- columns ------------------------------------------------------------------------------------


@both_formats
def test_a_toasted_value_that_an_update_did_not_touch_is_unchanged(version: FormatVersion) -> None:
    big = b"x" * 9000
    changes = [
        insert(PAGES, b"1", big, b"a"),
        update(PAGES, [b"1", big, b"a"], b"1", big, b"b", omitted=["body"]),
        update(PAGES, [b"1", big, b"b"], b"1", None, b"b"),
    ]
    found = images(translated(version, *changes))
    assert [image.new["body"] for image in found] == [big, UNCHANGED, None]


@both_formats
def test_what_the_log_knows_of_a_table_tells_what_the_first_update_left_out(
    version: FormatVersion,
) -> None:
    left_out = update(PAGES, [b"1", b"", b"a"], b"1", b"", b"b", omitted=["body"])
    (image,) = images(translated(version, left_out))
    assert "body" not in image.new
    text = encode(Type(16500, "public", "mood"))
    columns = (
        Column(True, "id", 23, -1),
        Column(False, "mood", 16500, -1),
        Column(False, "body", 25, -1),
        Column(False, "gone", 23, -1),
        Column(False, "note", 25, -1),
    )
    relation = encode(Relation(4711, "public", "items", "d", columns))
    translator = Translator(version, known=[(relation, text)])
    found = decoded(records(translator, documents(version, [left_out])))
    (image,) = images(found)
    # A column of four bytes is never left out: it was dropped.
    assert image.new == {
        "id": b"1",
        "mood": UNCHANGED,
        "body": UNCHANGED,
        "note": b"b",
    }
    assert [type(message) for message in found[1:4]] == [Type, Relation, Update]
    # The other mode's oid is the server's own, and not ours to use.
    assert isinstance(found[2], Relation)
    assert found[2].oid >= 2**31


@both_formats
def test_the_log_hands_back_what_it_knows(version: FormatVersion, tmp_path: Path) -> None:
    first = records(Translator(version), documents(version, [insert(PAGES, b"1", b"x", b"a")]))
    storage = LocalStorage(tmp_path)
    write(storage, [[memoryview(record) for record in first]], Random(1))
    known = [entry.messages for entry in read_tables(storage)]
    left_out = update(PAGES, [b"1", b"x", b"a"], b"1", b"x", b"b", omitted=["body"])
    texts = documents(version, [left_out])
    texts = [text.replace(b"1555620", b"1555720") for text in texts]
    texts = [text.replace(b"15555F0", b"15556F0") for text in texts]
    again = records(Translator(version, known=known), texts)
    write(storage, [[memoryview(record) for record in again]], Random(1))
    _, second = read(storage)
    ((change, relations),) = second.changes()
    assert isinstance(change, Update)
    assert change.new == (b"1", UNCHANGED, b"b")
    columns = [column.name for column in relations[change.relation_oid].columns]
    assert columns == ["id", "body", "note"]


@both_formats
def test_a_table_keeps_its_number(version: FormatVersion) -> None:
    def described(translator: Translator) -> Relation:
        found = decoded(records(translator, documents(version, [insert(PAGES, b"1", b"", b"")])))
        (relation,) = (message for message in found if isinstance(message, Relation))
        return relation

    first = described(Translator(version))
    assert described(Translator(version)) == first
    assert 2**31 <= first.oid < 2**32
    # Another name that has the number keeps it, and ours keeps the one it got beside that.
    other = replace(first, name="other")
    second = described(Translator(version, known=[[encode(other)]]))
    assert second.oid != first.oid
    again = [[encode(replace(first, oid=second.oid))], [encode(other)]]
    assert described(Translator(version, known=again)).oid == second.oid
    again.reverse()
    assert described(Translator(version, known=again)).oid == second.oid


@both_formats
def test_ddl_between_changes_makes_a_new_description(version: FormatVersion) -> None:
    added = source(ID, AMOUNT, NOTE, Field("more", "integer", 23))
    dropped = source(ID, NOTE)
    wider = source(ID, replace(AMOUNT, type_text="numeric(12,2)"), NOTE)
    found = translated(
        version,
        insert(ITEMS, b"1", b"1.00", b"a"),
        insert(ITEMS, b"2", b"1.00", b"b"),
        update(added, [b"1", b"1.00", b"a", None], b"1", b"1.00", b"a", b"5"),
        insert(dropped, b"3", b"c"),
        insert(wider, b"4", b"1.00", b"c"),
    )
    kinds = [type(message).__name__[0] for message in found]
    assert "".join(kinds) == "BRIIRURIRIC"
    columns = [
        [(column.name, column.type_modifier) for column in message.columns]
        for message in found
        if isinstance(message, Relation)
    ]
    assert columns == [
        [("id", -1), ("amount", 655366), ("note", -1)],
        [("id", -1), ("amount", 655366), ("note", -1), ("more", -1)],
        [("id", -1), ("note", -1)],
        [("id", -1), ("amount", 786438), ("note", -1)],
    ]


def test_types_have_names_that_readers_understand() -> None:
    fields = [
        ID,
        Field("mood", 'app."Odd ""mood"', 16500),
        Field("moods", "app.mood[]", 16501),
        # A domain: its oid, with the type below.
        Field("price", "numeric(10,2)", 16502),
        Field("high", "public.x", 3_000_000_000 - 2**32),
    ]
    found = translated(2, insert(source(*fields), b"1", b"a", b"{a}", b"1.50", b"a"))
    types = [message for message in found if isinstance(message, Type)]
    assert types == [
        Type(16500, "app", 'Odd "mood'),
        Type(16501, "app", "_mood"),
        Type(16502, "pg_catalog", "numeric"),
        Type(3_000_000_000, "public", "x"),
    ]
    (relation,) = (message for message in found if isinstance(message, Relation))
    assert [column.type_modifier for column in relation.columns] == [-1] * 5


@both_formats
def test_without_type_names_there_are_oids(version: FormatVersion) -> None:
    fields = (ID, Field("price", "numeric(10,2)", 1700), Field("mood", "public.mood", 16500))
    texts = documents(version, [insert(source(*fields), b"1", b"1.50", b"ok")])
    if version == 1:
        found = json.loads(texts[0])
        (change,) = found["change"]
        del change["columntypes"]
        # As wal2json leaves it.
        change["columnoptionals"] = []
        texts = [json.dumps(found).encode()]
    else:
        found = json.loads(texts[1])
        for one in found["columns"]:
            del one["type"]
        texts[1] = json.dumps(found).encode()
    messages = decoded(records(Translator(version), texts))
    (relation,) = (message for message in messages if isinstance(message, Relation))
    assert [column.type_oid for column in relation.columns] == [23, 1700, 16500]
    assert [column.type_modifier for column in relation.columns] == [-1, -1, -1]


@both_formats
def test_a_type_that_wal2json_does_not_escape_is_read(version: FormatVersion) -> None:
    fields = (ID, Field("mood", "MOOD", 16500), Field("note", "text", 25))
    texts = documents(version, [insert(source(*fields), b"1", b'","type":"x', b"n")] * 2)
    spoilt = [text.replace(b'"MOOD"', b'"Odd, schema"."a""mood"') for text in texts]
    assert spoilt != texts
    found = decoded(records(Translator(version), spoilt))
    assert Type(16500, "Odd, schema", 'a"mood') in found
    assert [image.new["mood"] for image in images(found)] == [b'","type":"x'] * 2


# --- old rows -----------------------------------------------------------------------------------


@both_formats
@pytest.mark.parametrize("first", ["I", "U", "D"])
def test_a_full_identity_is_known_by_what_the_old_row_holds(
    version: FormatVersion, first: str
) -> None:
    table = source(ID, NOTE, RATE, identity="f")
    changes = {
        "I": insert(table, b"1", b"a", None),
        "U": update(table, [b"1", b"a", None], b"1", b"b", None),
        "D": delete(table, b"1", b"a", None),
    }
    found = translated(version, changes[first], changes["U"], changes["D"])
    old = {"id": b"1", "note": b"a", "rate": None}
    assert [image.old for image in images(found)][1:] == [old, old]
    relations = [message for message in found if isinstance(message, Relation)]
    assert relations[-1].replica_identity == "f"
    rows = [message for message in found if isinstance(message, Update | Delete)]
    assert rows[-1].old_row == (b"1", b"a", None)


@both_formats
def test_a_toasted_key_comes_with_its_old_value(version: FormatVersion) -> None:
    """The new row lacks it, as pgoutput's does, and the old key has it."""
    table = source(Field("id", "text", 25, nullable=False), NOTE)
    key = b"k" * 9000
    found = translated(
        version,
        insert(table, key, b"a"),
        update(table, [key, b"a"], key, b"b", omitted=["id"]),
    )
    (change,) = (message for message in found if isinstance(message, Update))
    assert (change.old_key, change.new) == ((key, None), (UNCHANGED, b"b"))


def test_a_null_number_is_no_fault_where_a_column_may_have_been_dropped() -> None:
    """After a restart it is not known which columns allow NULL."""
    before = source(ID, BODY, RATE, identity="f")
    columns = tuple(Column(True, one.name, one.oid, -1) for one in before.fields)
    known = [[encode(Relation(2**31, "public", "items", "f", columns))]]
    after = source(ID, RATE, identity="f")
    found = records(Translator(2, known=known), documents(2, [delete(after, b"1", None)]))
    (image,) = images(decoded(found))
    assert image.old.get("id", b"1") == b"1"
    assert "body" not in image.old


@both_formats
def test_a_delete_shows_that_a_type_was_altered(version: FormatVersion) -> None:
    before = source(ID, Field("code", "integer", 23), identity="f")
    after = source(ID, Field("code", "text", 25), identity="f")
    found = translated(version, insert(before, b"1", b"5"), delete(after, b"1", b"five"))
    relations = [message for message in found if isinstance(message, Relation)]
    assert [relation.columns[1].type_oid for relation in relations] == [23, 25]


@both_formats
def test_a_full_identity_is_known_after_a_column_was_dropped(version: FormatVersion) -> None:
    """It could have been left out, had the identity not been FULL."""
    before = source(ID, BODY, RATE, identity="f")
    after = source(ID, RATE, identity="f")
    found = translated(
        version,
        insert(before, b"1", b"a", b"1.5"),
        update(after, [b"1", b"1.5"], b"1", b"2.5"),
        delete(after, b"1", b"2.5"),
    )
    olds = [(m.old_row, m.old_key) for m in found if isinstance(m, Update | Delete)]
    assert olds == [((b"1", b"1.5"), None), ((b"1", b"2.5"), None)]


@both_formats
def test_an_identity_index_is_no_full_identity(version: FormatVersion) -> None:
    table = source(ID, AMOUNT, NOTE, identity="i", key=["amount"])
    found = translated(
        version,
        insert(table, b"1", b"2", b"a"),
        update(table, [b"1", b"2", b"a"], b"1", b"2", b"b"),
        update(table, [b"1", b"2", b"a"], b"1", b"3", b"b"),
        delete(table, b"1", b"3", b"b"),
    )
    relations = [message for message in found if isinstance(message, Relation)]
    assert relations[-1].replica_identity == "i"
    assert [column.in_identity for column in relations[-1].columns] == [False, True, False]
    olds = [m.old_key for m in found if isinstance(m, Update | Delete)]
    assert olds == [None, (None, b"2", None), (None, b"3", None)]


def test_format_1_leaves_unknown_what_may_be_null_or_not_sent() -> None:
    """The old row has the identifier alone: NULL elsewhere, or an identity that is smaller now."""
    table = source(ID, NOTE, RATE, identity="f")
    translator = Translator(1)
    changes = [insert(table, b"1", b"a", None), delete(table, b"1", b"a", None)]
    records(translator, documents(1, changes))
    (image,) = images(_after(translator, 1, delete(table, b"2", None, None)))
    assert image.old == {"id": b"2"}
    # One that has a column more is sure again, and the description stays.
    found = _after(translator, 1, delete(table, b"3", b"x", None))
    assert images(found)[0].old == {"id": b"3", "note": b"x", "rate": None}


def _after(translator: Translator, version: FormatVersion, change: RowChange) -> list[Message]:
    """The next change, with its table's description in front."""
    found = decoded(records(translator, documents(version, [change])))
    if not any(isinstance(message, Relation) for message in found):
        relation = Decoder(1, "off").decode(
            translator._tables.table(change.source.name).described[-1]
        )
        found.insert(0, relation)
    return found


@both_formats
def test_an_identity_that_becomes_smaller_is_noticed(version: FormatVersion) -> None:
    full = source(ID, AMOUNT, NOTE, identity="f")
    found = translated(
        version,
        update(full, [b"1", b"2", b"a"], b"1", b"2", b"b"),
        delete(replace(full, identity="d"), b"1", b"2", b"b"),
        insert(replace(full, identity="d"), b"1", b"2", b"b"),
    )
    relations = [message for message in found if isinstance(message, Relation)]
    assert [relation.replica_identity for relation in relations] == ["f", "d"]
    assert [image.old for image in images(found)] == [
        {"id": b"1", "amount": b"2", "note": b"a"},
        {"id": b"1"},
        {},
    ]


@both_formats
def test_a_null_number_in_the_first_delete_of_a_table_is_no_fault(version: FormatVersion) -> None:
    (image,) = images(
        translated(version, delete(source(ID, RATE, identity="f", key=()), b"1", None))
    )
    assert image.old == {"id": b"1"}


# --- transactions -------------------------------------------------------------------------------


def test_format_2_has_both_ends_of_the_commit_record() -> None:
    found = translated(2, insert(ITEMS, b"1", b"1.00", b"a"))
    committed_us = 848_319_253_858_327
    assert found[0] == Begin(Lsn.parse("0/15555F0"), committed_us, 740)
    assert found[-1] == Commit(Lsn.parse("0/15555F0"), END, committed_us)


@pytest.mark.parametrize(("durable", "kept"), [(END - 1, 1), (END, 0), (END + 1, 0)])
def test_format_1_is_dropped_from_the_end_of_its_commit_on(durable: int, kept: int) -> None:
    """It has no start, and one byte before the end serves as well."""
    found = records(Translator(1), documents(1, [insert(ITEMS, b"1", b"1.00", b"a")]))
    begin = decoded(found)[0]
    assert isinstance(begin, Begin)
    assert begin.final_lsn == END - 1
    events = Fragmenter(Lsn(durable)).feed([memoryview(record) for record in found])
    assert sum(event.changes for event in events if isinstance(event, Fragment)) == kept


@both_formats
def test_a_transaction_without_changes_moves_only_the_position(version: FormatVersion) -> None:
    translator = Translator(version)
    assert records(translator, documents(version, [])) == []
    assert translator.complete_lsn == END
    assert not translator.half_read


def test_a_transaction_is_half_read_until_its_commit() -> None:
    translator = Translator(2)
    for text in (begin_2(), format_2(insert(ITEMS, b"1", b"1.00", b"a"))):
        translator.feed(AT, text)
        assert translator.half_read
    translator.feed(AT, commit_2())
    assert not translator.half_read


@both_formats
def test_the_time_of_a_commit_may_be_any_that_postgres_has(version: FormatVersion) -> None:
    moments = {
        b"2026-11-18 12:14:13+00": 848_319_253_000_000,
        b"2026-11-18 12:14:13.5+05:30": 848_299_453_500_000,
        b"0044-03-15 12:00:00+00 BC": -64_464_465_600_000_000,
        b"294276-12-31 23:59:59.999999+00": 9_223_371_331_199_999_999,
        b"infinity": 2**63 - 1,
        b"-infinity": -(2**63),
    }
    for text, expected in moments.items():
        texts = documents(version, [insert(ITEMS, b"1", b"1.00", b"a")])
        texts = [one.replace(b"2026-11-18 12:14:13.858327+00", text) for one in texts]
        begin = decoded(records(Translator(version), texts))[0]
        assert isinstance(begin, Begin)
        assert begin.committed_us == expected


def test_truncates_are_in_format_2() -> None:
    truncate = control_2("T", xid=740, lsn="0/1555390", schema="public", table="items")
    other = control_2("T", xid=740, lsn="0/1555390", schema="public", table="other")
    texts = [begin_2(), format_2(insert(ITEMS, b"1", b"1", b"a")), truncate, other, commit_2()]
    found = decoded(records(Translator(2), texts))
    relations = {one.name: one for one in found if isinstance(one, Relation)}
    truncates = [one for one in found if isinstance(one, Truncate)]
    assert [one.relation_oids for one in truncates] == [
        (relations["items"].oid,),
        (relations["other"].oid,),
    ]
    # No document has shown its columns.
    assert relations["other"].columns == ()


@pytest.mark.parametrize("transactional", [True, False])
@both_formats
def test_messages_are_those_with_our_prefix(version: FormatVersion, transactional: bool) -> None:
    def texts(prefix: str) -> list[bytes]:
        facts = {"transactional": transactional, "prefix": prefix, "content": "beat é"}
        if version == 1:
            start = {"xid": 740, "nextlsn": str(END), "timestamp": "2026-11-18 12:14:13+00"}
            about = start if transactional else {}
            return [json.dumps({**about, "change": [{"kind": "message", **facts}]}).encode()]
        message = control_2("M", xid=None, timestamp=None, lsn="0/1555390", **facts)
        return [begin_2(), message, commit_2()] if transactional else [message]

    translator = Translator(version, message_prefix="ours")
    assert records(translator, texts("others")) == []
    found = records(translator, texts("ours"))
    told = LogicalMessage(transactional, AT, "ours", "beat é".encode())
    assert told in decoded(found)
    assert len(found) == (3 if transactional else 1)
    events = Fragmenter(Lsn(1), "ours").feed([memoryview(record) for record in found])
    assert Signal("beat é".encode()) in events
    assert records(Translator(version), texts("ours")) == []


# --- documents that are none --------------------------------------------------------------------


def spoilt(version: FormatVersion) -> list[bytes]:
    change = insert(ITEMS, b"1", b"1.00", b"secret")
    (text,) = documents(1, [change]) if version == 1 else [format_2(change)]
    return [
        text[:-40],
        text[:-1],
        text + b"}",
        text.replace(b"secret", b'sec"ret'),
        text.replace(b"1.00", b"NaN"),
        text.replace(b"1.00", b"[1]"),
        text.replace(b'"schema":"public",', b""),
        text.replace(b"typeoid", b"typoid"),
        text.replace(b"1.00", b'{"secret":1}'),
        b"",
        b"[]",
        b"{}",
        b"secret",
        b'{"action":"X"}',
        b'{"change":[{"kind":"secret"}]}',
    ]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("which", range(15))
def test_a_document_that_cannot_be_read_is_an_error_without_its_content(
    version: FormatVersion, which: int
) -> None:
    text = spoilt(version)[which]
    translator = Translator(version)
    if version == 2:
        translator.feed(AT, begin_2())
        translator.feed(AT, format_2(insert(ITEMS, b"1", b"1.00", b"x")))
    with pytest.raises(DocumentInvalid) as caught:
        translator.feed(AT, text)
    assert caught.value.lsn == AT
    assert str(AT) in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "texts",
    [
        [format_2(insert(ITEMS, b"1", b"1.00", b"x"))],
        [commit_2()],
        [begin_2(), begin_2()],
        [control_2("T", schema="public", table="items")],
        [begin_2(), format_2(delete(ITEMS, b"1", b"1", b"x")).replace(b"identity", b"identify")],
    ],
)
def test_documents_out_of_order_are_an_error(texts: list[bytes]) -> None:
    with pytest.raises(DocumentInvalid):
        records(Translator(2), texts)
