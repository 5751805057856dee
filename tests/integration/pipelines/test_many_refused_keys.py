"""However many keys a target refuses, a batch does bounded work, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.pipelines import applying
from penstock.pipelines.applying import UNTRIED, Applied, retry
from support.database import Database
from support.targets import LOG, Follower, with_tables

TABLES = (
    "CREATE TABLE services (id text PRIMARY KEY)",
    "INSERT INTO services VALUES ('good')",
    "CREATE TABLE stats (service text REFERENCES services, status text, count int)",
    "CREATE UNIQUE INDEX ON stats (service, status) NULLS NOT DISTINCT",
)
MEND = "INSERT INTO services VALUES ('bad')"
# Those that look which keys wait, print them, take them back, park them again, and the position.
FEW = 40


def counted(follower: Follower, work: Callable[[], Applied]) -> tuple[Applied, int]:
    """And how many statements and savepoints it took."""
    connection, done = follower.connection, Counter[str]()

    def counting(name: str) -> Callable[..., Any]:
        function = getattr(connection, name)

        def call(*given: Any, **named: Any) -> Any:
            done[name] += 1
            return function(*given, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("execute", "transaction"):
            patch.setattr(connection, name, counting(name))
        return work(), done.total()


def retried(follower: Follower) -> Applied:
    return retry(follower.connection, follower.aggregate, LOG)


def untried(follower: Follower) -> int:
    return sum(reason == UNTRIED for _, _, reason in follower.parked())


def everything(follower: Follower) -> dict[Any, int]:
    """What is shown and what is parked, together."""
    total = Counter(follower.shown())
    for key, count, _ in follower.parked():
        total[key["service"], key["status"]] += count
    return dict(total)


@pytest.mark.parametrize("staged", [False, True])
def test_thousands_of_refused_keys_among_good_ones_take_bounded_work(
    database18: Database, staged: bool
) -> None:  # M5.3, M5.4
    with_tables(database18, *TABLES)
    most = 2 * applying._MOST_TRIES + FEW
    deltas: dict[Any, int] = {
        (service, str(number)): number + 1 for number in range(3_000) for service in ("bad", "good")
    }
    with Follower(database18, staged=staged) as follower:
        applied, work = counted(follower, lambda: follower.add(deltas))
        assert work < most
        shown = follower.shown()
        assert (applied.changes, applied.parked) == (6_000, 6_000 - len(shown))
        assert len(shown) > 50
        assert everything(follower) == deltas
        # Until they are due, a batch has nothing to do with them.
        database18.run("UPDATE penstock.parked SET retry_at = now() + interval '1 day'")
        deltas["good", "new"] = 1
        _, work = counted(follower, lambda: follower.add({("good", "new"): 1}))
        assert work < FEW
        assert follower.shown()["good", "new"] == 1
        # Each retry comes to some more.
        database18.run("UPDATE penstock.parked SET retry_at = now() WHERE attempts = 0")
        before = untried(follower)
        _, work = counted(follower, lambda: retried(follower))
        assert work < most
        assert untried(follower) < before - 100
        assert everything(follower) == deltas
        # When they are no longer refused, all are shown soon.
        database18.run(MEND)
        follower.make_due()
        for _ in range(-(-6_000 // applying._MOST_DUE)):
            tried, work = counted(follower, lambda: retried(follower))
            assert (tried.parked, work < FEW) == (0, True)
        assert (follower.shown(), follower.parked()) == (deltas, [])


def test_a_key_that_was_not_come_to_is_told_as_such_and_tried_soon(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.4
    monkeypatch.setattr(applying, "_MOST_TRIES", 2)
    with_tables(database18, *TABLES)
    deltas: dict[Any, int] = {("bad", status): 1 for status in "abc"}
    deltas["good", "d"] = 1
    waits = "SELECT key->>'status', attempts, reason FROM penstock.parked ORDER BY 1"
    refused = "ForeignKeyViolation: stats_service_fkey"
    with Follower(database18) as follower:
        assert follower.add(deltas).parked == 4
        assert database18.rows(waits) == [
            ("a", 1, refused),
            ("b", 0, UNTRIED),
            ("c", 0, UNTRIED),
            ("d", 0, UNTRIED),
        ]
        # They are due at once; the others are not, let us say.
        later = "UPDATE penstock.parked SET retry_at = now() + interval '1 day' WHERE attempts > 0"
        for left in (1, 0):
            database18.run(later)
            retried(follower)
            assert untried(follower) == left
            assert everything(follower) == deltas
        assert follower.shown() == {("good", "d"): 1}
        # Those that are refused again and again leave the tries to a batch's own keys.
        follower.make_due()
        follower.add({("good", "e"): 1})
        assert follower.shown() == {("good", "d"): 1, ("good", "e"): 1}


def test_those_that_are_due_for_longest_are_tried_first(
    database18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:  # M5.4
    monkeypatch.setattr(applying, "_MOST_DUE", 2)
    with_tables(database18, *TABLES)
    with Follower(database18) as follower:
        follower.add({("bad", status): 1 for status in "abcd"})
        database18.run(
            "UPDATE penstock.parked SET retry_at = now() - interval '1 s' * ascii(key->>'status')"
        )
        # What comes for one that is due but has to wait, waits with it.
        assert follower.add({("bad", "a"): 5, ("bad", "d"): 2, ("bad", "b"): -1}).parked == 2
        assert sorted(
            database18.rows(
                "SELECT key->>'status', attempts, deltas->>'count' FROM penstock.parked"
            )
        ) == [("a", 1, "6"), ("c", 2, "1"), ("d", 2, "3")]


def test_one_key_that_is_parked_under_two_texts_adds_up(database18: Database) -> None:  # M5.4
    """As if one had been parked with other settings."""
    with_tables(database18, *TABLES, "ALTER TABLE stats ALTER status TYPE date USING NULL")
    with Follower(database18) as follower:
        follower.add({("bad", "2026-03-04"): 5})
        database18.run(
            "UPDATE penstock.parked SET digest = '',"
            ' key = \'{"service": "bad", "status": "March 4, 2026"}\''
        )
        follower.add({("bad", "2026-03-04"): 2})
        database18.run("UPDATE penstock.parked SET retry_at = now() WHERE digest = ''")
        assert follower.add({}).parked == 1
        assert [each[:2] for each in follower.parked()] == [
            ({"service": "bad", "status": "2026-03-04"}, 7)
        ]


def test_thousands_that_a_column_cannot_hold_take_bounded_work_too(
    database18: Database,
) -> None:  # M5.4
    with_tables(database18, *TABLES, "ALTER TABLE stats ALTER status TYPE int USING NULL")
    deltas: dict[Any, int] = {("good", f"{number}x"): 1 for number in range(3_000)}
    with Follower(database18) as follower:
        # To see how each would be printed, and to try.
        _, work = counted(follower, lambda: follower.add({**deltas, ("good", "1"): 1}))
        assert work < 4 * applying._MOST_TRIES + FEW
        follower.make_due()
        _, work = counted(follower, lambda: follower.add({("good", "2"): 1}))
        assert work < 4 * applying._MOST_TRIES + FEW
        assert follower.shown()["good", 2] == 1
        assert sum(count for _, count, _ in follower.parked()) + len(follower.shown()) == 3_002
