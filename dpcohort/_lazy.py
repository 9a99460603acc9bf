# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from dpcohort.errors import missing_extra

__all__ = ["names_on_use"]


def names_on_use(
    package: str, **modules: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__all__``, ``__getattr__`` and ``__dir__`` of a package that loads modules on use.

    Its imports under ``TYPE_CHECKING`` say the same to type checkers; a test compares them.

    Args:
        package: its ``__name__``.
        modules: by module of the package, the names that are taken from it, with spaces between.

    Example:
        >>> names, find, _ = names_on_use("dpcohort.data", _dataset="Dataset Normalisation")
        >>> names, find("Dataset").__name__
        (['Dataset', 'Normalisation'], 'Dataset')
        >>> find("Datasets")
        Traceback (most recent call last):
        ...
        AttributeError: module 'dpcohort.data' has no attribute 'Datasets'
    """
    homes = {name: home for home, names in modules.items() for name in names.split()}

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

    return sorted(homes), find, lambda: sorted(sys.modules[package].__all__)
