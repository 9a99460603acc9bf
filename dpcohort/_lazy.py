# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from dpcohort.errors import missing_extra

__all__ = ["names_on_use"]


def names_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose public names are in its modules.

    Importing the package then loads none of them. Type checkers see the names by imports under
    ``TYPE_CHECKING``.

    Args:
        package: its ``__name__``.
        homes: the module of each name, below the package.

    Example:
        >>> find = names_on_use("dpcohort.clients", {"Budget": "population"})
        >>> find("Budget")(epsilon=1.0, delta=1e-5).epsilon
        1.0
        >>> find("Budgets")
        Traceback (most recent call last):
        ...
        AttributeError: module 'dpcohort.clients' has no attribute 'Budgets'
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
        except ModuleNotFoundError as error:
            words = missing_extra(error)
            if words is not None:
                error.add_note(str(words))
            raise
        setattr(sys.modules[package], name, value)
        return value

    return find
