"""What a part is doing, by what it says and when it ends."""

from __future__ import annotations

from penstock.run.lifecycle import Lifecycle

FOLLOWING = {"event": "following"}


def test_it_runs_when_it_follows_and_is_troubled_while_it_tries_again() -> None:
    part = Lifecycle("capture")
    part.started()
    part.said({"event": "new_log"}, 1.0)
    assert (part.state, part.has_run) == ("starting", False)
    part.said(FOLLOWING, 2.0)
    assert (part.state, part.has_run) == ("running", True)
    for trouble, end in (
        ("reconnecting", "following"),
        ("target not written, trying again", "target written again"),
        ("aggregate stopped", "aggregate goes on after a reset"),
    ):
        states = []
        for what in (trouble, end):
            part.said({"event": what}, 3.0)
            states.append(part.state)
        assert states == ["troubled", "running"]


def test_it_is_troubled_until_all_targets_are_written_again() -> None:
    part = Lifecycle("aggregates")
    part.started()
    part.said(FOLLOWING, 1.0)
    states = []
    for what, whose in (
        ("target not written, trying again", "one"),
        ("target not written, trying again", "two"),
        ("target written again", "two"),
        ("target written again", "one"),
    ):
        part.said({"event": what, "aggregate": whose}, 2.0)
        states.append(part.state)
    assert states == ["troubled", "troubled", "troubled", "running"]
    # A new process knows nothing of the old one's troubles.
    part.said({"event": "target not written, trying again", "aggregate": "one"}, 3.0)
    part.ended(4.0)
    part.started()
    part.said(FOLLOWING, 5.0)
    assert part.state == "running"


def test_pauses_grow_while_it_dies_young_and_start_over_when_it_was_well() -> None:
    part = Lifecycle("capture")
    pauses = []
    for now in range(10):
        part.started()
        part.said(FOLLOWING, now)
        pauses.append(part.ended(now + 1.0))
        assert part.state == "pausing"
        assert part.due == now + 1.0 + pauses[-1]
    assert pauses[0] <= 1.0
    assert 15.0 <= pauses[-1] <= 30.0
    part.started()
    part.said(FOLLOWING, 100.0)
    # It was reconnecting in between, which is not dying.
    part.said({"event": "reconnecting"}, 120.0)
    part.said(FOLLOWING, 159.0)
    assert part.ended(160.0) <= 1.0


def test_why_it_ended_is_known_until_it_is_started_again() -> None:
    part = Lifecycle("aggregates")
    part.started()
    part.said({"event": "failed", "problem": "no target", "remedy": "Run setup"}, 1.0)
    assert part.failure is not None
    assert (part.failure.problem, part.failure.remedy) == ("no target", "Run setup")
    part.ended(2.0)
    assert part.failure is not None
    part.started()
    assert part.failure is None


def test_a_part_that_does_not_run_is_reported_at_a_slow_pace() -> None:
    # M7.3
    part = Lifecycle("capture")
    assert part.down_s(0.0) is None
    assert part.report_at == 60.0
    assert part.down_s(60.0) == 60.0
    part.started()
    part.said({"event": "failed", "problem": "no slot", "remedy": "Run setup"}, 100.0)
    part.ended(100.0)
    part.started()
    # It does not begin anew with each attempt, nor is the reason forgotten.
    assert part.down_s(300.0) == 300.0
    assert part.last_failure is not None
    part.said(FOLLOWING, 310.0)
    assert part.down_s(700.0) is None
    assert vars(part)["last_failure"] is None


def test_a_failure_is_transient_only_if_the_part_says_so() -> None:
    part = Lifecycle("capture")
    failed = {"event": "failed", "problem": "no slot", "remedy": "Run setup"}
    for facts, transient in (({}, False), ({"transient": True}, True)):
        part.said({**failed, **facts}, 1.0)
        assert part.failure is not None
        assert part.failure.transient is transient
