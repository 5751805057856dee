"""From Spark's many lines to the one sentence that says what is wrong.

try:
    query.awaitTermination()
except Exception as error:
    print(explain(error) or error)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock import errors
from penstock.errors import ComputationFailed, PenstockError, PipelineError

# As Python ends a traceback; Spark puts the whole of it into its own message.
_OURS = re.compile(r"^(?:\S*: )?penstock\.errors\.(\w+): (.+)$", re.MULTILINE)
# As Spark begins a message.
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")


def original(error: BaseException) -> PenstockError | None:
    """Penstock's own error, if that is why Spark failed, as it was raised in another process."""
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, PipelineError)
    problem, _, remedy = text.partition(". ")
    again: PenstockError = kind.__new__(kind, problem)
    PenstockError.__init__(again, problem, remedy=remedy)
    return again


@contextmanager
def computing() -> Iterator[None]:
    """Work for Spark; what goes wrong in it is told as our own error."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise original(error) or failed(error) from error


def failed(error: BaseException) -> ComputationFailed:
    """By the names that Spark gives its conditions: its texts quote values."""
    names = dict.fromkeys(_CONDITION.findall(str(error)))
    return ComputationFailed(
        f"Spark's work failed: {', '.join(names) or type(error).__name__}",
        remedy="Correct the expression that cannot be computed of every row, such as a cast; or "
        "give Spark more memory",
    )


def explain(error: BaseException) -> str | None:
    """What Penstock's source said, if that is why Spark failed."""
    found = _OURS.findall(str(error))
    return f"{found[-1][1]}" if found else None


@contextmanager
def said_once() -> Iterator[None]:
    """In Spark's processes: an error also goes to stderr, as a sentence, before Spark wraps it."""
    try:
        yield
    except PenstockError as error:
        sys.stderr.write(f"penstock: {error}\n")
        sys.stderr.flush()
        raise
