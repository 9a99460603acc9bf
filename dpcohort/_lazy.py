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

#: An import for type checkers, with the name and its home.
_IMPORT = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def names_on_use(package: str) -> tuple[list[str], Callable[[str], Any]]:
    """The ``__all__`` and the ``__getattr__`` of a package whose public names are in its modules.

    Importing the package then loads none of them. Its file says where they are by imports under
    ``TYPE_CHECKING``, ``from MODULE import NAME as NAME``, for type checkers and for this function.

    Args:
        package: its ``__name__``, while it is being imported or later.

    Raises:
        ImportError: there is no source beside the compiled file.

    Example:
        >>> import dpcohort.data
        >>> names, find = names_on_use("dpcohort.data")
        >>> "Dataset" in names, find("Dataset").__name__
        (True, 'Dataset')
        >>> find("Datasets")
        Traceback (most recent call last):
        ...
        AttributeError: module 'dpcohort.data' has no attribute 'Datasets'
    """
    loader: Any = getattr(sys.modules[package].__spec__, "loader", None)
    source = loader.get_source(package) if hasattr(loader, "get_source") else None
    if source is None:
        raise ImportError(
            f"{package} needs its source: pack the .py files of dpcohort with the compiled ones "
            "(PyInstaller: --collect-all dpcohort)."
        )
    homes = {name: home for home, name in _IMPORT.findall(source)}

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

    return sorted(homes), find
