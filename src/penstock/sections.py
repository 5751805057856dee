"""What the sections of the configuration are made of: their base, and the kinds of their values."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from penstock.names import MAX_BYTES, TableName


class Dsn(str):
    """A connection string that knows which setting or variable holds it, for errors."""

    __slots__ = ("origin",)
    origin: str

    def __new__(cls, text: str, origin: str) -> Dsn:
        dsn = super().__new__(cls, text)
        dsn.origin = origin
        return dsn


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


def _table_name(value: object) -> object:
    if not isinstance(value, str):
        return value
    table = TableName.parse(value)
    # The server would cut off the rest, and find another table or none.
    _identifier(table.schema)
    _identifier(table.name)
    return table


def _identifier(value: str) -> str:
    if len(value.encode()) > MAX_BYTES:
        raise ValueError(f"a PostgreSQL name has at most {MAX_BYTES} bytes")
    if "\0" in value:
        raise ValueError("should not hold a NUL character")
    return value


def _not_boolean(value: object) -> object:
    if isinstance(value, bool):  # which Python takes for 0 and 1
        raise ValueError("should be a number")  # noqa: TRY004  # pydantic explains only this one
    return value


def not_empty(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("should not be empty")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("should not hold a NUL character")
    return value


TableRef = Annotated[TableName, BeforeValidator(_table_name)]
Number = Annotated[float, BeforeValidator(_not_boolean)]
WholeNumber = Annotated[int, BeforeValidator(_not_boolean)]
Secret = Annotated[SecretStr, BeforeValidator(not_empty)]
Identifier = Annotated[str, Field(min_length=1), AfterValidator(_identifier)]
# Postgres allows nothing else in the name of a slot; an aggregate's becomes part of other names.
PlainName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,63}$")]
