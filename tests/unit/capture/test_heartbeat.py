"""The heartbeat's meter: whose it was, how long it took, which ones were missed."""

from __future__ import annotations

from penstock.capture.heartbeat import HeartbeatMeter


def test_the_latency_ends_when_it_is_durable() -> None:  # M1.5
    meter = HeartbeatMeter("us")
    content = meter.emitting(10.0)
    meter.durable(10.1)
    before = meter.latency_s
    assert before is None
    assert meter.received(content.encode())
    meter.durable(10.5)
    assert meter.latency_s == 0.5
    meter.durable(99.0)
    assert meter.latency_s == 0.5


def test_one_that_has_not_come_back_by_the_next_is_missed() -> None:  # M1.5
    meter = HeartbeatMeter("us")
    late = meter.emitting(0.0)
    meter.emitting(10.0)
    assert meter.missed == 1
    assert not meter.received(late.encode())


def test_those_of_others_and_nonsense_are_not_ours() -> None:
    meter = HeartbeatMeter("us")
    meter.emitting(0.0)
    for content in ("them 1", "us", "us 2", "us x", "us ²", f"us {'9' * 900}", ""):
        assert not meter.received(content.encode())
    assert not meter.received(b"\xff 1")
    assert meter.received(b"us 1")
    assert not meter.received(b"us 1")
