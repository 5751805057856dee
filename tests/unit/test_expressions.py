"""Expressions of Spark SQL: their columns, and the same over columns of other names."""

from __future__ import annotations

import pytest

from penstock.expressions import BadExpression, columns_of, renamed

NAMES = {"a": "x y", "b": "b text", "Weird name": "w", "a`b": "c`d"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "`x y`"),
        ("a || a", "`x y` || `x y`"),
        ("upper(a) || 'a'", "upper(`x y`) || 'a'"),
        ("a || '🐘 a' || a", "`x y` || '🐘 a' || `x y`"),
        ("`Weird name` = b", "`w` = `b text`"),
        ("`a``b`", "`c``d`"),
        ("/* a */ a", "/* a */ `x y`"),
        ("cast(a as date)", "cast(`x y` as date)"),
        ("a::date", "`x y`::date"),
        ("extract(year from a)", "extract(year from `x y`)"),
        ("datediff(day, a, b)", "datediff(day, `x y`, `b text`)"),
        ("case a when 'a' then b end", "case `x y` when 'a' then `b text` end"),
        # A name that the expression itself makes stays.
        ("transform(a, x -> x + b)", "transform(`x y`, x -> x + `b text`)"),
        ("'constant'", "'constant'"),
        ("a -- a comment", "`x y` -- a comment"),
    ],
)  # fmt: skip
def test_an_expression_over_columns_of_other_names(text: str, expected: str) -> None:  # M5.2
    assert renamed(text, NAMES) == expected


def test_a_column_that_is_not_among_the_names_is_an_error() -> None:
    with pytest.raises(KeyError):
        renamed("a || c", NAMES)


@pytest.mark.parametrize("text", ["n.a", "upper(n.a)", "a || coalesce(`n`.b, '')"])
def test_a_column_with_its_table_is_refused_wherever_it_stands(text: str) -> None:  # M5.2
    with pytest.raises(BadExpression, match="without its table"):
        columns_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "date 'today'",
        "timestamp ' NOW'",
        "cast('yesterday' as date)",
        "coalesce(a, try_cast('tomorrow UTC' as timestamp))",
    ],
)
def test_a_text_that_means_the_present_moment_is_refused(text: str) -> None:  # M5.2
    with pytest.raises(BadExpression, match="another one each day"):
        columns_of(text)


@pytest.mark.parametrize("text", ['"Two words"', "Two words"])
def test_a_column_in_quotes_of_sql_or_in_none_is_told_of_backticks(text: str) -> None:  # M5.2, M7.3
    with pytest.raises(BadExpression, match="in backticks: `Two words`"):
        columns_of(text)
    assert columns_of("`Two words`") == ("Two words",)
    assert columns_of('coalesce(a, "none")') == ("a",)
    assert columns_of("'all'") == ()


@pytest.mark.parametrize("word", ["select", "case", "FROM", "between"])
def test_a_column_named_as_a_word_of_sql_is_told_of_backticks(word: str) -> None:  # M5.2, M7.3
    with pytest.raises(BadExpression, match=f"in backticks: `{word}`"):
        columns_of(word)
    assert columns_of(f"`{word}`") == (word,)
    with pytest.raises(BadExpression, match="about several rows"):
        columns_of("(select 1)")


def test_such_words_are_texts_like_others_elsewhere() -> None:  # M5.2
    assert columns_of("a = 'today' or a = 'now'") == ("a",)
    assert columns_of("cast('2026-11-16' as date) < a") == ("a",)


def test_seconds_since_1970_are_stable_of_a_value_and_not_of_the_present() -> None:  # M5.2
    assert columns_of("unix_timestamp(created_at)") == ("created_at",)
    assert columns_of("unix_timestamp(day, 'yyyy-MM-dd')") == ("day",)
    for text in ("unix_timestamp()", "created_at - UNIX_TIMESTAMP( )"):
        with pytest.raises(BadExpression, match="another value each time"):
            columns_of(text)
