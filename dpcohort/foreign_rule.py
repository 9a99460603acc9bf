# SPDX-License-Identifier: Apache-2.0
"""Rules that are not of this package: whatever goes wrong in one is told with its name."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpcohort.errors import DpcohortError, InputError

__all__ = ["full_name", "is_foreign", "naming_the_rule"]


def full_name(rule: object) -> str:
    """A rule's class as ``module:Class``, as a config would name it.

    Example:
        >>> full_name(Path("."))
        'pathlib:PosixPath'
    """
    kind = _class_of(rule)
    return f"{kind.__module__}:{kind.__qualname__}"


def is_foreign(rule: object) -> bool:
    """Whether a rule is somebody's own and not of this package.

    Example:
        >>> is_foreign(InputError), is_foreign(Path("."))
        (False, True)
    """
    home: str = _class_of(rule).__module__
    return home.partition(".")[0] != "dpcohort"


@contextmanager
def naming_the_rule(rule: object, doing: str) -> Iterator[None]:
    """Whatever goes wrong inside somebody's own rule is told as one message that names it.

    A mistake in a rule of this package stays what it is: a bug, with its traceback.

    Args:
        rule: the rule, or its class.
        doing: which of its methods runs.

    Raises:
        InputError: a foreign rule failed; says how, and where in its file.

    Example:
        >>> with naming_the_rule(Path("."), "select"):
        ...     1 / 0
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: the rule pathlib:PosixPath failed in select: ...
    """
    try:
        yield
    except DpcohortError:
        raise
    except Exception as error:  # it is not ours, so it may fail in any way
        if not is_foreign(rule):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError.because(
            f"the rule {full_name(rule)} failed in {doing}: {type(error).__name__}: {error} "
            f"({Path(last.filename).name}, line {last.lineno})."
        ) from error


def _class_of(rule: object) -> Any:
    return rule if inspect.isclass(rule) or inspect.isfunction(rule) else type(rule)
