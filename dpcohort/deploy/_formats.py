# SPDX-License-Identifier: Apache-2.0
"""What the files and messages of a deployment have in common: known keys, checked values.

A :class:`Format` is a pydantic model that takes no unknown key and changes no type silently. What
is wrong with it is an ``InputError`` in the words that every other check uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, ValidationInfo

from dpcohort._validate import choice, number, whole_number
from dpcohort.config import words_of
from dpcohort.config._settings import dotted
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_TERMS
from dpcohort.text_files import of_file, parse_toml, read_utf8

SomeFormat = TypeVar("SomeFormat", bound="Format")
_LONGEST_NAME = 200
#: What is said first where several things are wrong.
_FIRST = {"extra_forbidden": 0, "missing": 1}


class Format(BaseModel):
    """A file, a table of one, or a message: exactly the keys that it has, each of its type.

    Example:
        >>> class Point(Format):
        ...     across: Annotated[float, bounded(above=0)]
        >>> Point(acros=1.0)
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: key = 'acros' is not allowed: it must be one of across.
        Did you mean 'across'?
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise in_words(type(self), error) from None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return self.model_dump()

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read it from a TOML file that a person wrote.

        Raises:
            FileFormatError: the file is not there, too long, not TOML, or not of this format.
        """
        with of_file(path):
            return cls(**read_toml(path, at_most_bytes=LARGEST_TERMS))


def in_words(model: type[BaseModel], error: ValidationError) -> InputError:
    """The first thing that pydantic found wrong, as every other check says it.

    Args:
        model: what was to be made.
        error: what pydantic found.
    """
    found = min(error.errors(include_url=False), key=lambda one: _FIRST.get(one["type"], 2))
    where = dotted(found["loc"])
    if found["type"] == "missing":
        return InputError.because(f"the key {where!r} is missing.")
    if found["type"] == "extra_forbidden":
        try:
            choice("key", where, model.model_fields)
        except InputError as unknown:
            return unknown
    own = found.get("ctx", {}).get("error")
    if not isinstance(own, InputError):
        # A tuple here is a list in the file.
        kind = found["type"].replace("tuple_type", "list_type")
        return InputError.because(words_of({**found, "type": kind}, {})[1])
    # An error of a table inside says in which table.
    return own if own.field == where or not where else InputError.because(f"[{where}] {own}")


def replace(value: SomeFormat, **changes: Any) -> SomeFormat:
    """The same with other values, checked again; as ``dataclasses.replace`` for dataclasses."""
    return type(value)(**{**dict(value), **changes})


def read_toml(path: str | Path, *, at_most_bytes: int) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        FileFormatError: it is not there, too long, not text, or not TOML.
    """
    with of_file(path, "not valid TOML: {}.", (ValueError,)):
        return parse_toml(read_utf8(path, at_most_bytes=at_most_bytes).decode("utf-8"))


def bounded(**bounds: float) -> PlainValidator:
    """A finite number inside bounds, as :func:`~dpcohort._validate.number` takes them."""
    return PlainValidator(lambda value, info: number(_field(info), value, **bounds))


def whole(**bounds: int) -> PlainValidator:
    """A whole number inside bounds, as :func:`~dpcohort._validate.whole_number` takes them."""
    return PlainValidator(lambda value, info: whole_number(_field(info), value, **bounds))


def checked_name(field: str, value: Any) -> str:
    """The value as a name: 1 to 200 printable characters, no space at either end.

    Example:
        >>> checked_name("dataset", "ward-7")
        'ward-7'
    """
    if (
        isinstance(value, str)
        and 0 < len(value) <= _LONGEST_NAME
        and value.isprintable()
        and value == value.strip()
    ):
        return value
    allowed = f"a name of 1 to {_LONGEST_NAME} printable characters, no space at either end"
    raise InputError(field, given=value, allowed=allowed)


def _field(info: ValidationInfo) -> str:
    return str(info.field_name)


#: A name that people gave to data, a run or a model.
Name = Annotated[str, PlainValidator(lambda value, info: checked_name(_field(info), value))]
