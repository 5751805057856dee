"""The file that is written means what was suggested, whatever the names hold. M7.4"""

from __future__ import annotations

import tomllib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.config import Config
from penstock.init.aggregate import SuggestedAggregate, plain_name
from penstock.init.columns import Dimension, spelled
from penstock.init.dsn import OpenDsn
from penstock.init.fitness import Unfit
from penstock.init.suggestion import Entry, Suggestion
from penstock.init.text import render
from penstock.names import TableName
from penstock.postgres.tables import set_logged
from penstock.printed_sql import SqlKind, printed

# What Postgres allows: anything but NUL, of 63 bytes at most.
names = st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=15
)
tables = st.builds(TableName, names, names)
sql = names.filter(lambda name: not name.rstrip().endswith(";")).map(
    lambda name: printed(SqlKind.COVERING_INDEX, name)
)
unfit = st.builds(Unfit, tables, names, names, st.none() | sql, st.booleans())
# A few that Spark SQL has no way to write cannot be counted by, and are not suggested.
columns = names.filter(lambda name: spelled(name) is not None)


@st.composite
def suggestions(draw: st.DrawFn) -> Suggestion:
    captured = draw(st.lists(tables, min_size=1, max_size=4, unique=True))
    source = captured[0]
    held = draw(st.lists(columns, min_size=1, max_size=4, unique=True))
    dimensions = tuple(Dimension(column, draw(names), 2.0) for column in held)
    summed = draw(st.none() | columns.filter(lambda name: "`" not in name))
    measures: tuple[tuple[str, str | None], ...] = (("count of rows", None),)
    measures += (("sum of something", summed),) if summed else ()
    identities = [draw(st.none() | names) for _ in captured]
    aggregate = SuggestedAggregate(
        plain_name(source.name),
        source,
        dimensions,
        measures,
        draw(tables),
        identities[0],
        draw(st.none() | sql),
    )
    return Suggestion(
        name=draw(names),
        dsn=OpenDsn(draw(names.filter(str.strip)), draw(st.sampled_from([(), ("password",)]))),
        slot="penstock",
        tables=tuple(Entry(*pair) for pair in zip(captured, identities, strict=True)),
        others=tuple(draw(st.lists(tables, max_size=2))),
        unfit=tuple(draw(st.lists(unfit, max_size=2))),
        aggregate=draw(st.none() | st.just(aggregate)),
        log=draw(names.filter(str.strip)),
        polled=draw(st.booleans()),
    )


# A machine with other work may take long to draw so many names.
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(suggestions())
def test_the_file_means_what_was_suggested(suggestion: Suggestion) -> None:
    text = render(suggestion)
    assert tomllib.loads(text) == suggestion.settings
    config = Config.model_validate(tomllib.loads(text))
    assert [table.name for table in config.source.tables] == [e.table for e in suggestion.tables]
    assert config.source.name == suggestion.name
    assert config.source.mode == ("poll" if suggestion.polled else "stream")
    for aggregate in config.aggregate:
        assert suggestion.aggregate is not None
        assert aggregate.sources[0].table == suggestion.aggregate.table
        assert aggregate.targets[0].table == suggestion.aggregate.target
        assert list(aggregate.keys) == [d.column for d in suggestion.aggregate.dimensions]
        assert all(each.plain for each in aggregate.dimensions.values())
        assert aggregate.summed == tuple(c for _, c in suggestion.aggregate.measures if c)


ORDERS = TableName("public", "orders")


def shown(**changes: object) -> str:
    fields: dict[str, object] = {
        "name": "app",
        "dsn": OpenDsn("postgresql://app@db/app"),
        "slot": "penstock",
        "tables": (Entry(ORDERS),),
    }
    return render(Suggestion(**{**fields, **changes}))  # type: ignore[arg-type]  # by the tests


# M7.3
def test_where_a_secret_that_was_left_out_belongs_is_told() -> None:
    given = shown(dsn=OpenDsn("host=db", ("password",)))
    assert "Put it in PGPASSWORD or in ~/.pgpass" in given
    in_environment = shown(dsn=OpenDsn("host=db", ("password",), "PENSTOCK_SOURCE_DSN"))
    assert "# PENSTOCK_SOURCE_DSN has it" in in_environment
    other = shown(dsn=OpenDsn("host=db", ("password", "sslpassword")))
    assert "The password and sslpassword that" in other
    assert "# Put the whole connection string in PENSTOCK_SOURCE_DSN" in other


UNLOGGED = TableName("public", "c")


def test_tables_that_are_left_out_can_be_taken_out_of_the_comment() -> None:
    text = shown(
        others=(TableName("public", "b"),),
        unfit=(
            Unfit(TableName("public", "c"), "is unlogged", "Run", set_logged(UNLOGGED)),
            Unfit(TableName("public", "d"), "has no key", "Add a primary key", with_full=True),
        ),
    )
    entries = {
        '  # "public.b",',
        '  # "public.c",',
        '  # { name = "public.d", replica_identity = "full" },',
    }
    assert entries <= set(text.splitlines())
    for entry in entries:
        text = text.replace(entry, entry.replace("# ", ""))
    config = Config.model_validate(tomllib.loads(text))
    assert [str(table.name) for table in config.source.tables] == [
        "public.orders",
        "public.b",
        "public.c",
        "public.d",
    ]


def test_long_lists_of_tables_that_are_left_out_end_with_their_number() -> None:
    text = shown(others=tuple(TableName("public", f"t{n}") for n in range(250)))
    assert text.count('# "public.t') == 100
    assert "# … and 150 more." in text


def test_without_a_suggestion_an_example_shows_what_an_aggregate_looks_like() -> None:
    text = shown()
    assert "aggregate" not in tomllib.loads(text)
    example = text[text.index("# [[aggregate]]") :].replace("# ", "")
    Config.model_validate({"source": {"dsn": "-", "tables": ["orders"]}, **tomllib.loads(example)})
