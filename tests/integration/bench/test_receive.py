"""The receive benchmark on a small backlog: both clients read all of it."""

from __future__ import annotations

from penstock.bench.receive import bench_receive


def test_both_clients_read_the_same_backlog_in_alternating_pairs() -> None:
    lines: list[str] = []
    report = bench_receive(lines.append, inserts=2_000, pairs=2)
    figures = {figure.name: figure for figure in report.figures}
    assert figures["rate ratio to pg_recvlogical"].goal == 0.95
    assert figures["penstock"].value > 0
    assert figures["pg_recvlogical"].value > 0
    assert figures["penstock CPU"].value > 0
    assert figures["penstock CPU"].unit == "s per million messages"
    # Every change is a message, and so are begins, commits and relations.
    assert all(run["ours"]["handled"] > 4_000 for run in report.runs)
    assert [run["pair"] for run in report.runs] == [1, 2]
    assert any("backlog of 4,000 changes" in line for line in lines)
