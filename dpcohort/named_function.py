# SPDX-License-Identifier: Apache-2.0
"""A user's own function, named as ``module:function``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dpcohort._validate import nearest
from dpcohort.errors import InputError

__all__ = ["is_named_function", "named_function"]


def is_named_function(text: str) -> bool:
    """Whether the text has the form ``package.module:function``.

    Example:
        >>> is_named_function("my_project.data:load"), is_named_function("C:/data.npz")
        (True, False)
    """
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(p.isidentifier() for p in module.split("."))


def named_function(
    field: str,
    text: str,
    *,
    kind: str = "function",
    example: str = "my_project.data:load",
) -> Callable[..., Any]:
    """The function of that name; modules in the current folder are found too.

    Args:
        field: what it is for, named in errors.
        text: ``module:function``.
        kind: ``function`` or ``class``, for errors.
        example: of such a name, for errors.

    Raises:
        InputError: if the module or the function is not there, or importing it fails.

    Example:
        >>> named_function("dataset", "math:sqrt")(9.0)
        3.0
    """
    allowed = f"module:{kind}, as in {example}"
    if not is_named_function(text):
        raise InputError(field, given=text, allowed=allowed)
    module_name, _, name = text.partition(":")
    with _current_folder_importable():
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # the user's module may fail in any way while it is imported
            raise InputError(
                field,
                given=text,
                allowed=allowed,
                next_step=f"Importing {module_name} failed: {type(error).__name__}: {error}. "
                "Modules are looked for among installed packages and in the current folder.",
            ) from error
    function = getattr(module, name, None)
    if not callable(function):
        hint = nearest(name, [word for word in dir(module) if not word.startswith("_")])
        suggestion = f" Did you mean {hint!r}?" if hint else ""
        next_step = f"The module {module_name} has no {kind} {name!r}.{suggestion}"
        raise InputError(field, given=text, allowed=allowed, next_step=next_step)
    found: Callable[..., Any] = function
    return found


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """A console script does not have the current folder on its path; a user expects it there."""
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
