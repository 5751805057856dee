"""Aliases and constraints that do not hold for rows from before. M4.5, M4.6"""

from __future__ import annotations

from support.database import Database
from support.targets import declared
from support.truth import truth


def test_a_not_null_that_is_not_valid_does_not_hide_the_next_alias(database18: Database) -> None:
    database18.run(
        "CREATE TABLE notifications (id int PRIMARY KEY, status text, old_status text)",
        "INSERT INTO notifications VALUES (1, NULL, 'old'), (2, 'new', 'old')",
        "ALTER TABLE notifications ADD CONSTRAINT filled NOT NULL status NOT VALID",
    )
    source = {"table": "notifications", "aliases": {"status": ["status", "old_status"]}}
    counts = declared(sources=[source], dimensions=["status"])
    assert truth(database18, counts) == {("old",): (1,), ("new",): (1,)}
    database18.run(
        "UPDATE notifications SET status = old_status WHERE status IS NULL",
        "ALTER TABLE notifications VALIDATE CONSTRAINT filled",
        "UPDATE notifications SET old_status = NULL",
    )
    assert truth(database18, counts) == {("old",): (1,), ("new",): (1,)}
