# SPDX-License-Identifier: Apache-2.0
"""Every error dpcohort raises on purpose, and the exit code the CLI gives it.

::

    DpcohortError                  1
    ├── InputError                 2   a value, file or option that cannot be used
    │   ├── FileFormatError        2   the same, with file, line and field
    │   ├── DivergedError          2   settings with which a training left all numbers
    │   └── WaitingError           2   what may be otherwise later, when the same is tried again
    ├── DataMissingError           3   data that was asked for is not there
    ├── BudgetExceededError        4   a client would spend more than it promised
    └── VerificationError          1   something stored does not hold when checked again

A message says what was given, what is allowed and what to do next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = [
    "BudgetExceededError",
    "DataMissingError",
    "DivergedError",
    "DpcohortError",
    "FileFormatError",
    "InputError",
    "VerificationError",
    "WaitingError",
    "missing_extra",
]


class DpcohortError(Exception):
    """Base of all errors below; catch it to catch them all."""

    exit_code = 1
    #: Whether the same may go well when it is tried again later.
    waits = False


class InputError(DpcohortError, ValueError):
    """A value, file or option that cannot be used.

    Example:
        >>> raise InputError("epsilon", given=-1.0, allowed="a number above 0")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: epsilon = -1.0 is not allowed: it must be a number above 0.
    """

    exit_code = 2

    def __init__(
        self, field: str, *, given: object, allowed: str, next_step: str | None = None
    ) -> None:
        message = f"{field} = {_shown(given)} is not allowed: it must be {allowed}."
        if next_step is not None:
            message += f" {next_step}"
        super().__init__(message)
        self.field = field

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors go from process to process with their message as it is."""
        return _restored, (type(self), self.args, self.__dict__)

    @classmethod
    def because(cls, message: str) -> InputError:
        """An input error in free words, for what no single field is to blame for."""
        error = cls.__new__(cls)
        ValueError.__init__(error, message)
        error.field = ""
        return error

    @classmethod
    def about(cls, field: str, words: str) -> InputError:
        """An input error in free words that begin with the field they are about.

        Example:
            >>> str(InputError.about("alpha", "is missing."))
            'alpha is missing.'
        """
        error = cls.because(f"{field} {words}")
        error.field = field
        return error


def _restored(kind: type[InputError], args: tuple[Any, ...], known: dict[str, Any]) -> InputError:
    error = kind.__new__(kind)
    ValueError.__init__(error, *args)
    error.__dict__.update(known)
    return error


class FileFormatError(InputError):
    """Something in a file cannot be used; says where.

    Example:
        >>> raise FileFormatError("clients.csv", "epsilon = -1 must be above 0", line=3)
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: clients.csv, line 3: epsilon = -1 must be above 0
    """

    def __init__(self, path: str | Path, problem: str, *, line: int | None = None) -> None:
        where = str(path) if line is None else f"{path}, line {line}"
        ValueError.__init__(self, f"{where}: {problem}")
        self.path = str(path)
        self.line = line
        self.field = ""


class DivergedError(InputError):
    """A training left all numbers; the message names the settings to lower."""


class WaitingError(InputError):
    """Something that others must do first; the same, tried again later, may go well."""

    waits = True


class DataMissingError(DpcohortError):
    """Data that was asked for is not there; the message says how to get it."""

    exit_code = 3


class BudgetExceededError(DpcohortError):
    """A client would spend more than it promised; nothing was spent."""

    exit_code = 4


class VerificationError(DpcohortError):
    """Something stored (a hash, a certificate, a receipt) does not hold when checked again."""


#: The extra that brings a module which dpcohort itself does without.
_EXTRAS = {
    **dict.fromkeys(("torch", "sklearn", "cryptography"), "train"),
    **dict.fromkeys(("jinja2", "plotly"), "report"),
    "pyarrow": "tables",
    **dict.fromkeys(("onnx", "skops", "pandas"), "export"),
    "flwr": "flower",
    "tensorboard": "tensorboard",
    **dict.fromkeys(("onnx", "skops"), "export"),
    "prometheus_client": "operate",
    "distributed": "cluster",
}


def missing_extra(error: ModuleNotFoundError) -> DataMissingError | None:
    """What to install where a module is not there; None if no extra brings it.

    Example:
        >>> print(missing_extra(ModuleNotFoundError(name="plotly.io")))
        This needs plotly, which is not installed.
        Get it with: python -m pip install "dpcohort[report]"
    """
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRAS:
        return None
    return DataMissingError(
        f"This needs {module}, which is not installed. "
        f'Get it with: python -m pip install "dpcohort[{_EXTRAS[module]}]"'
    )


def _shown(value: object, limit: int = 60) -> str:
    """The value as a person can read it in one line, however long it was."""
    try:
        text = repr(value)
    except ValueError:  # Python writes out no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= limit else f"{text[: limit - 3]}... ({len(text)} characters)"
