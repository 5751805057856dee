"""The options of `format("penstock")`: what is read, and what is refused with a sentence."""

from __future__ import annotations

import pytest

from penstock.errors import BadOption
from penstock.lsn import Lsn
from penstock.spark.errors import original
from penstock.spark.options import SourceOptions

GIVEN = {"path": "/log", "table": "notes"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"columns": ""}, "a name in the list is empty"),
        ({"columns": "id,,body"}, "a name in the list is empty"),
        ({"columns": "id,"}, "a name in the list is empty"),
        ({"columns": "notes.id"}, "is not a column name"),
        ({"columns": "*"}, "is not a column name"),
        ({"path": "s3://bucket/log"}, "from a folder, not from s3://"),
        ({"path": "hdfs://host/log"}, "from a folder, not from hdfs://"),
        ({"startingPosition": "yesterday"}, "is none of: earliest, latest, an LSN"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        SourceOptions.parse(GIVEN | changes)


def test_an_empty_list_of_tables_is_not_all_tables() -> None:
    with pytest.raises(BadOption, match="a name in the list is empty"):
        SourceOptions.parse({"path": "/log", "tables": ""})


def test_a_position_may_be_given_as_a_change_has_it() -> None:
    read = SourceOptions.parse(GIVEN | {"startingPosition": "24729856"})
    assert read.starting == Lsn(24729856)


def test_options_that_spark_repeats_for_a_table_of_sql_are_left_out() -> None:
    twice = GIVEN | {f"option.{name}": value for name, value in GIVEN.items()}
    assert SourceOptions.parse(twice) == SourceOptions.parse(GIVEN)


def test_an_error_from_another_process_is_itself_again() -> None:
    said = (
        "[STREAM_FAILED] …\n"
        "penstock.errors.BadOption: option 'path': it is empty. The options are: path, table\n more"
    )
    found = original(RuntimeError(said))
    assert isinstance(found, BadOption)
    assert (found.problem, found.remedy) == (
        "option 'path': it is empty",
        "The options are: path, table",
    )
    assert original(RuntimeError("something else")) is None
