"""What the time until the first change was spent on."""

from __future__ import annotations

from penstock.run.milestones import Milestones


def test_the_account_names_each_step_and_adds_up() -> None:
    milestones = Milestones(100.0)
    said = [
        ("capture", "new_log", 100.5),
        ("capture", "following", 101.0),
        ("aggregates", "spark started", 105.0),
        ("aggregates", "following", 106.5),
        ("aggregates", "seeding", 107.0),
        ("aggregates", "seeded", 108.0),
        ("aggregates", "seeded", 110.0),
    ]
    for part, event, now in said:
        assert milestones.said(part, {"event": event}, now) is None
    account = milestones.said("aggregates", {"event": "first change applied"}, 110.5)
    assert account == (
        "first change applied after 10.5 s: capture connects 1.0 s, Spark starts 4.0 s, "
        "the job starts 1.5 s, seeding 3.5 s, waiting for the first change 0.5 s"
    )


def test_it_is_given_once_and_a_part_that_is_started_again_does_not_count() -> None:
    milestones = Milestones(0.0)
    milestones.said("capture", {"event": "following"}, 1.0)
    milestones.said("capture", {"event": "following"}, 5.0)
    first = {"event": "first change applied"}
    assert milestones.said("aggregates", first, 6.0) == (
        "first change applied after 6.0 s: capture connects 1.0 s, "
        "waiting for the first change 5.0 s"
    )
    assert milestones.said("aggregates", first, 7.0) is None
