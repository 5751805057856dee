"""From Spark's many lines to the one sentence that says what is wrong.

try:
    query.awaitTermination()
except Exception as error:
    print(explain(error) or error)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock import errors
from penstock.errors import ComputationFailed, PenstockError, PipelineError
from penstock.spark.cause import cause
from penstock.spark.conditions import known_conditions

# As Python ends a traceback; Spark puts the whole of it into its own message.
_OURS = re.compile(r"^(?:\S*: )?penstock\.errors\.(\w+): (.+)$", re.MULTILINE)
# What Spark raises here.
OF_SPARK = (PySparkException, Py4JError)
# As Spark begins a message, and as a value in one may be written.
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
# As it shows the part of an expression that failed: a line of it, and carets below.
_UNDERLINED = re.compile(r"^== SQL .*==\n(.*)\n( *)(\^+)", re.MULTILINE)
# Conditions that say where Spark failed, not of what.
_MACHINERY = ("STREAM", "FOREACH", "PYTHON", "TASK")


@dataclass(frozen=True, slots=True)
class Place:
    """An expression of an aggregate, as Spark is given it."""

    aggregate: str
    # Of the aggregate: its filter, or which dimension.
    part: str
    text: str
    # Its columns as that text has them, and as the declaration does.
    columns: Mapping[str, str] = field(default_factory=dict)

    def as_declared(self, some: str) -> str:
        """A piece of the text, in the words of the declaration."""
        for ours, theirs in self.columns.items():
            some = some.replace(ours, theirs)
        return some


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
def computing(places: Sequence[Place]) -> Iterator[None]:
    """Work for Spark, which computes `places`; what goes wrong in it is told as our own error."""
    try:
        yield
    except OF_SPARK as error:
        raise original(error) or failed(error, places) from error


def failed(error: BaseException, places: Sequence[Place]) -> ComputationFailed:
    """By the names of Spark's conditions and by the expression: its texts quote values."""
    said = str(error)
    names = [name for name in _CONDITION.findall(said) if name in known_conditions()]
    what = ", ".join(dict.fromkeys(names)) or type(error).__name__
    for line, before, carets in _UNDERLINED.findall(said):
        failing = line[len(before) :][: len(carets)]
        # What is in no expression is of a value that has such lines.
        if failing and (found := [place for place in places if failing in place.text]):
            what += f" in {found[0].as_declared(failing)}"
            places = found
            break
    remedy = (
        "Correct the expression, which cannot be computed of every row: try_cast and try_divide "
        "give NULL where cast and / fail"
    )
    if all(name.startswith(_MACHINERY) for name in names):
        why = cause(f"{said}\n{getattr(error, '_stackTrace', '')}")
        problem = f"Spark's work failed: {why.sentence} ({what})"
        return ComputationFailed(problem, remedy=why.remedy, in_spark_log=True)
    problem = f"Spark's work{_told(places)} failed: {what}"
    return ComputationFailed(problem, remedy=remedy, in_spark_log=False)


def _told(places: Sequence[Place]) -> str:
    """As exactly as is known."""
    aggregates = " or ".join(dict.fromkeys(place.aggregate for place in places))
    of = f" for aggregate {aggregates}" if places else ""
    return of if len(places) != 1 else f" for {places[0].part} of aggregate {aggregates}"


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
