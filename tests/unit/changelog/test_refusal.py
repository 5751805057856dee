"""A refusal for good is in the log before anybody hears of it, and holds."""

from __future__ import annotations

import pytest

from penstock.changelog.refusal import FILE, check_not_refused, kept_refusals
from penstock.errors import (
    LogNotContinued,
    OlderTimeline,
    PenstockError,
    ServerRewound,
    SlotAheadOfLog,
    SourceUnavailable,
    WrongServer,
    WrongTimeline,
)
from penstock.lsn import Lsn
from penstock.testing import MemoryStorage

FOR_GOOD = [
    ServerRewound("the WAL ends before", remedy="start a new log"),
    WrongTimeline("it left before", remedy="start a new log"),
    SlotAheadOfLog("penstock", Lsn(2), "log", Lsn(1)),
]
NOT_FOR_GOOD = [
    WrongServer("another one", remedy="correct the DSN"),
    OlderTimeline("left behind", remedy="correct the DSN"),
    SourceUnavailable("in recovery", remedy="wait"),
]


@pytest.mark.parametrize("error", FOR_GOOD, ids=lambda error: type(error).__name__)
def test_it_is_given_again_with_its_remedy(error: PenstockError) -> None:  # M1.8
    storage = MemoryStorage()
    check_not_refused(storage)
    with pytest.raises(type(error)), kept_refusals(storage):
        raise error
    assert storage._files[FILE].synced, "it is on disk"
    with pytest.raises(type(error)) as again:
        check_not_refused(storage)
    assert (again.value.problem, again.value.remedy) == (error.problem, error.remedy)


@pytest.mark.parametrize("error", NOT_FOR_GOOD, ids=lambda error: type(error).__name__)
def test_what_a_person_corrects_elsewhere_or_what_passes_is_not_kept(error: PenstockError) -> None:
    storage = MemoryStorage()
    with pytest.raises(type(error)), kept_refusals(storage):
        raise error
    check_not_refused(storage)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"error": "ServerRewound"}'])
def test_a_damaged_one_holds_too(content: bytes) -> None:
    storage = MemoryStorage()
    storage.replace(FILE, content)
    with pytest.raises(LogNotContinued, match="new log"):
        check_not_refused(storage)


def test_one_of_a_newer_version_holds_in_its_own_words() -> None:
    storage = MemoryStorage()
    storage.replace(FILE, b'{"error": "Unheard", "problem": "no", "remedy": "do it"}')
    with pytest.raises(LogNotContinued, match=r"no\. do it"):
        check_not_refused(storage)
