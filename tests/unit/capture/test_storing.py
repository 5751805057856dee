"""The order in which capture hands a run to the log."""

from __future__ import annotations

from penstock.capture.storing import store
from penstock.lsn import Lsn
from penstock.postgres.fragments import Abort, Commit, Description, Fragment, Signal
from penstock.testing import RecordingLog


def fragment(xid: int, *messages: bytes, commit: Commit | None = None) -> Fragment:
    return Fragment(xid, True, False, [memoryview(message) for message in messages], commit)


def test_the_log_is_told_everything_in_the_order_received_and_appends_before_commits() -> None:
    # M3.2, M3.3
    log = RecordingLog()
    first, second, rest = fragment(7, b"a"), fragment(8, b"b"), fragment(7, b"c")
    rest.commit = Commit(Lsn(0x200), 0)
    described, aborted = Description(b"R"), Abort(8, 8)
    store(log, [first, second, described, aborted, rest])
    assert log.calls == [
        ("append", first),
        ("append", second),
        ("describe", described),
        ("abort", aborted),
        ("append", rest),
        ("commit", 7),
    ]


def test_a_commit_without_changes_is_told_without_an_append() -> None:
    # M3.3: all of a streamed transaction may have come before its commit.
    log = RecordingLog()
    store(log, [fragment(7, commit=Commit(Lsn(0x200), 0))])
    assert log.calls == [("commit", 7)]


def test_commits_and_signals_are_handed_back_in_order_and_signals_are_not_kept() -> None:
    # M2.2
    log = RecordingLog()
    beat, other = Signal(b"beat"), Signal(b"other")
    stored = store(
        log,
        [
            fragment(7, b"a", commit=Commit(Lsn(0x200), 0)),
            beat,
            fragment(8, commit=Commit(Lsn(0x300), 0)),
            other,
        ],
    )
    assert stored.commits == [Lsn(0x200), Lsn(0x300)]
    assert stored.signals == [beat, other]
    assert [name for name, _ in log.calls] == ["append", "commit", "commit"]
    assert log.visible == []
