"""What wal2json is asked for."""

from __future__ import annotations

from penstock.names import TableName
from penstock.postgres.polling.wal2json_options import slot_options

TABLES = [TableName("public", "items"), TableName("a.b", "c, d*\\")]


def test_the_options_of_format_2() -> None:
    options = slot_options(2, TABLES, message_prefix="ours")
    assert options == {
        "format-version": "2",
        "include-transaction": "1",
        "include-xids": "1",
        "include-timestamp": "1",
        "include-lsn": "1",
        "include-schemas": "1",
        "include-types": "1",
        "include-typmod": "1",
        "include-type-oids": "1",
        "include-domain-data-type": "1",
        "include-not-null": "1",
        "include-pk": "1",
        "add-tables": r"public.items,a\.b.c\,\ d\*\\",
        "add-msg-prefixes": "ours",
    }


def test_format_1_has_no_documents_for_the_ends_of_transactions() -> None:
    both = slot_options(1, TABLES).keys() ^ slot_options(2, TABLES).keys()
    assert both == {"include-transaction"}


def test_messages_are_left_out_at_the_server() -> None:
    """wal2json sends all of them unless some prefix is asked for."""
    assert slot_options(2, TABLES)["add-msg-prefixes"] == "penstock.none"


def test_types_and_text_of_numbers_are_choices() -> None:
    assert slot_options(2, TABLES, types=False)["include-types"] == "0"
    # wal2json 2.5 does not know it.
    assert "numeric-data-types-as-string" not in slot_options(2, TABLES)
