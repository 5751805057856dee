"""Errors travel between Spark's processes and arrive whole."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from penstock import errors
from penstock.errors import PenstockError
from penstock.lsn import Lsn


def subclasses(cls: type[PenstockError]) -> list[type[PenstockError]]:
    found = [cls]
    for child in cls.__subclasses__():
        found += subclasses(child)
    return [one for one in found if one.__module__ == errors.__name__]


def example(cls: type[PenstockError]) -> PenstockError:
    """One instance, from the constructor's own parameters."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= {"table": "public.t", "position": Lsn(7)}
        elif "int" in str(parameter.annotation):
            arguments[name] = 7
        elif "Lsn" in str(parameter.annotation):
            arguments[name] = Lsn(42)
        elif "bool" in str(parameter.annotation):
            arguments[name] = True
        else:
            arguments[name] = f"some {name}"
    return cls(**arguments)


# M7.3
@pytest.mark.parametrize("cls", subclasses(PenstockError), ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling(cls: type[PenstockError]) -> None:
    error = example(cls)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert copy.problem == error.problem
    assert copy.remedy == error.remedy
    assert copy.args == error.args
    assert copy.__dict__ == error.__dict__
    assert str(copy) == str(error)


@pytest.mark.parametrize("cls", subclasses(PenstockError), ids=lambda cls: cls.__name__)
def test_every_error_says_what_is_wrong_and_what_to_do(cls: type[PenstockError]) -> None:
    error = example(cls)
    assert error.problem
    assert error.remedy
    assert str(error) == f"{error.problem}. {error.remedy}"
    assert cls.__doc__
