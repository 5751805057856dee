"""How long an audit waits for capture."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from penstock.config import SourceConfig
from penstock.errors import VerifyTimeout
from penstock.lsn import Lsn
from penstock.pipelines import log_awaited
from penstock.pipelines.log_awaited import wait_for_log

NOWHERE = SourceConfig.model_validate(
    {"dsn": "host=127.0.0.1 port=1 connect_timeout=1", "tables": ["notes"]}
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_awaited, "_CATCH_UP_S", 0.2)
    monkeypatch.setattr(log_awaited, "_LOOK_AT_SLOT_S", 0.05)


def test_a_log_that_moves_is_waited_for_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # M5.6
    # A clock of our own: a busy machine would let more pass between two looks than there is.
    passed_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds

    def end() -> Any:
        return Mock(lsn=Lsn(int(passed_s / 0.1)))

    monkeypatch.setattr(log_awaited, "time", Mock(monotonic=lambda: passed_s, sleep=sleep))
    wait_for_log(NOWHERE, Mock(end=end), Lsn(8), Mock())
    assert passed_s > 0.7


def test_where_the_source_does_not_answer_capture_is_not_at_it_either() -> None:  # M5.6, M7.3
    log = Mock(end=Mock(return_value=Mock(lsn=Lsn(0x100))))
    with pytest.raises(VerifyTimeout, match=r"up to 0/100 only, 0/200 is needed.*\"penstock\""):
        wait_for_log(NOWHERE, log, Lsn(0x200), Mock())
