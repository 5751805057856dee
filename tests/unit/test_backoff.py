from __future__ import annotations

from penstock.backoff import Backoff


def test_pauses_double_up_to_a_limit_and_differ_between_clients() -> None:
    for _ in range(20):
        backoff = Backoff(first_s=0.1, most_s=1.0)
        pauses = [backoff.pause_s() for _ in range(6)]
        for pause, full in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], strict=True):
            assert full / 2 <= pause <= full
    assert len({Backoff().pause_s() for _ in range(20)}) > 1


def test_after_a_reset_the_pauses_start_over() -> None:
    backoff = Backoff(first_s=0.1, most_s=10.0)
    for _ in range(7):
        backoff.pause_s()
    backoff.reset()
    assert backoff.pause_s() <= 0.1
