"""Which of many things are refused, found by trying many at once. Pure.

Those are sifted of which the whole was refused: something is wrong with one of them at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sifted(Generic[T]):
    """What was not taken."""

    # Each with the reason.
    refused: list[tuple[T, str]]
    # Not come to, for there were too many tries.
    untried: Sequence[T]


# What is refused often stands together, where things are sorted by what it is refused for. So of
# very many, parts are tried first: else all those behind hundreds of refused ones would wait.
_MANY = 128
_PARTS = 32


def sift(
    things: Sequence[T], refusal: Callable[[Sequence[T]], str | None], tries: Iterator[int]
) -> Sifted[T]:
    """`refusal` takes all that it is given, or none and says why. `tries`: one is taken for each.

    What is not taken in parts, from the first to the last: half as many at a time after a refusal,
    twice as many after none. So one among a thousand takes some fifty tries, and where all are
    refused it is a try for each.
    """
    refused: list[tuple[T, str]] = []
    size = len(things)
    if len(things) >= _MANY:
        size = -(-len(things) // _PARTS)
        things = _not_in_parts(things, size, refusal, tries)
    # What was as large as that was refused.
    at, size = 0, max(size // 2, 1)
    while at < len(things) and next(tries, None) is not None:
        some = things[at : at + size]
        reason = refusal(some)
        if reason is None:
            at, size = at + len(some), size * 2
        elif len(some) > 1:
            size = len(some) // 2
        else:
            refused.append((some[0], reason))
            at += 1
    return Sifted(refused, things[at:])


def _not_in_parts(
    things: Sequence[T],
    size: int,
    refusal: Callable[[Sequence[T]], str | None],
    tries: Iterator[int],
) -> list[T]:
    left: list[T] = []
    for at in range(0, len(things), size):
        some = things[at : at + size]
        if next(tries, None) is None or refusal(some) is not None:
            left.extend(some)
    return left
