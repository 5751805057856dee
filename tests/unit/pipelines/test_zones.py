"""Which texts of an expression are zones."""

from __future__ import annotations

from penstock.pipelines.analysed import Node
from penstock.pipelines.zones import zones

COLUMN = Node("AttributeReference", "timestamp", (), "at timestamp")
LONDON = Node("Literal", "string", (), "Europe/London")
MOVED = Node("FromUTCTimestamp", "timestamp", (COLUMN, LONDON))


def test_zones_are_the_texts_that_functions_of_zones_are_given() -> None:  # M5.2
    text = Node("Literal", "string", (), "no zone")
    year = Node("Cast", "integer", (Node("Literal", "string", (), "2026"),))
    collated = Node("Collate", "string collate UNICODE", (LONDON, Node("ResolvedCollation", "")))
    null = Node("Cast", "string", (Node("Literal", "void", (), "null"),))
    assert list(zones(MOVED)) == ["Europe/London"]
    assert list(zones(Node("Concat", "string", (text, MOVED)))) == ["Europe/London"]
    assert list(zones(Node("MakeTimestamp", "timestamp", (year, LONDON)))) == ["Europe/London"]
    assert list(zones(Node("ToUTCTimestamp", "timestamp", (MOVED, collated)))) == [
        *("Europe/London", "Europe/London")
    ]
    assert list(zones(Node("ToUTCTimestamp", "timestamp", (COLUMN, null)))) == []
