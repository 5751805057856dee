"""Work in a thread: it ends with the block, and its failure is not lost."""

from __future__ import annotations

import threading

import pytest

from penstock.beside import beside


def broken() -> None:
    raise ValueError("broken")


def test_it_ends_with_the_block() -> None:
    done = threading.Event()
    ended = threading.Event()

    def work() -> None:
        done.wait(30)
        ended.set()

    with beside(work, done.set, "work") as check:
        check()
        assert not ended.is_set()
    assert ended.is_set()


def test_what_failed_is_raised_by_who_asks() -> None:
    def asking() -> None:
        with beside(broken, lambda: None, "work") as check:
            while True:
                check()

    with pytest.raises(ValueError, match="broken"):
        asking()


def test_what_failed_is_raised_at_the_end_of_the_block() -> None:
    def not_asking() -> None:
        with beside(broken, lambda: None, "work"):
            pass

    with pytest.raises(ValueError, match="broken"):
        not_asking()


def test_the_block_s_own_error_comes_first() -> None:
    def failing() -> None:
        with beside(broken, lambda: None, "work"):
            raise KeyError("mine")

    with pytest.raises(KeyError):
        failing()
