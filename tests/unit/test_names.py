"""Table names: what SQL prints, we read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.names import TableName, quote

# What Postgres allows in an identifier: anything but NUL (and the surrogates UTF-8 cannot hold).
identifiers = st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=20
)


@given(identifiers, identifiers)
def test_a_name_survives_being_written_as_sql(schema: str, name: str) -> None:
    table = TableName(schema, name)
    assert TableName.parse(table.sql) == table
    assert str(table) == table.sql


@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_$]{0,20}", fullmatch=True))
def test_an_unquoted_name_folds_to_lower_case(word: str) -> None:
    assert TableName.parse(word) == TableName("public", word.lower())
    assert TableName.parse(f"{word}.{word}") == TableName(word.lower(), word.lower())


def test_only_ascii_letters_are_folded_as_the_server_does() -> None:
    for written, meant in (("Ärger", "Ärger"), ("ABCÄÖ", "abcÄÖ"), ("𝔘nicode", "𝔘nicode")):
        assert TableName.parse(written) == TableName("public", meant)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        table = TableName.parse(text)
    except ValueError as error:
        message = str(error)
    else:
        assert TableName.parse(table.sql) == table
        return
    assert "is not a table name" in message


def test_reserved_words_and_capitals_are_quoted() -> None:
    assert [quote(word) for word in ("order", "Orders", "a b", 'say "hi"', "orders", "1st")] == [
        '"order"',
        '"Orders"',
        '"a b"',
        '"say ""hi"""',
        "orders",
        '"1st"',
    ]


@pytest.mark.parametrize("text", ["", "a.b.c", "a b", '"unclosed', "a.", ".a", "1st", 'a"b'])
def test_what_is_no_table_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a table name"):
        TableName.parse(text)
