"""Whatever a name holds, TOML reads it back."""

from __future__ import annotations

import tomllib

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.toml import comment, commented, key, value

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)


@given(texts)
@example("\x7f")
@example("a\r\nb\u2028\u0085")
@example('it\'s "both" \\')
def test_a_text_is_read_back(text: str) -> None:
    assert tomllib.loads(f"a = {value(text)}") == {"a": text}
    assert tomllib.loads(f"{key(text)} = 1") == {text: 1}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(texts, lambda one: st.lists(one) | st.dictionaries(texts, one), max_leaves=8))
def test_lists_and_tables_are_read_back(given: object) -> None:
    assert tomllib.loads(f"a = {value(given)}") == {"a": given}


@given(texts, texts)
def test_a_comment_never_becomes_a_value(prose: str, line: str) -> None:
    lines = [*comment(prose), commented(line)]
    assert tomllib.loads("\n".join(["a = [", *lines, "]"])) == {"a": []}
    assert all(one.startswith("#") and one.isprintable() for one in lines)
