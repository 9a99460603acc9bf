# SPDX-License-Identifier: Apache-2.0
"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from dpcohort.errors import missing_extra

__all__ = ["names_on_use"]

_IMPORT = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def names_on_use(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """The ``__getattr__`` and the ``__all__`` of a package whose public names are in its modules.

    Importing the package then loads none of them. They are listed once, in its ``__init__.py``
    under ``TYPE_CHECKING``, where type checkers see them too: ``from MODULE import NAME as NAME``,
    a line each.

    Args:
        package: its ``__name__``.
        file: its ``__file__``.

    Example:
        >>> import dpcohort.tuning
        >>> find, names = names_on_use("dpcohort.tuning", dpcohort.tuning.__file__)
        >>> find("Settings")(path=100.0).learning_rate(local_steps=2)
        0.5
        >>> find("Setting")
        Traceback (most recent call last):
        ...
        AttributeError: module 'dpcohort.tuning' has no attribute 'Setting'
    """
    with open(file, encoding="utf-8") as source:
        homes = {name: module for module, name in _IMPORT.findall(source.read())}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            words = missing_extra(error)
            if words is not None:
                error.add_note(str(words))
            raise
        setattr(sys.modules[package], name, value)
        return value

    return find, list(homes)
