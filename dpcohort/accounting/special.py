# SPDX-License-Identifier: Apache-2.0
"""Functions of scipy that accountants need, without the time it takes to load the rest of it.

``import scipy.special`` takes longer than planning for a thousand clients, and nearly all of that
goes into its front page (support for other array libraries); the functions themselves are compiled
and load in milliseconds. So the package is entered without its front page, which is run when
somebody asks for anything that it defines. Everybody sees one ``scipy.special``, and these are its
own functions, to the bit.

Transforms are numpy's, which are the same code as scipy's; numpy has no ``next_fast_len``.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["erfcx", "erfinv", "fast_length", "log_ndtr", "ndtr", "ndtri"]

_LOCK = threading.RLock()


class _Unopened(ModuleType):
    """A package whose ``__init__`` runs when a name is asked for that is not there yet."""

    def __getattr__(self, name: str) -> Any:
        with _LOCK:
            found, state = self.__spec__, self.__dict__
            if type(self) is _Unopened and not state.get("_opening") and found and found.loader:
                state["_opening"] = True  # what runs now may ask for names, too
                try:
                    found.loader.exec_module(self)
                finally:
                    del state["_opening"]
                object.__setattr__(self, "__class__", ModuleType)  # from now on, any module
        return ModuleType.__getattribute__(self, name)


def _enter(package: str) -> None:
    """Make the modules of a package importable before its ``__init__`` has run."""
    if package in sys.modules:
        return
    found = find_spec(package)
    if found is not None:
        module = module_from_spec(found)
        module.__class__ = _Unopened
        sys.modules[package] = module


def fast_length(least: int) -> int:
    """The smallest length from ``least`` on whose transform is fast: no prime factor above 5.

    Example:
        >>> fast_length(1021), fast_length(0)
        (1024, 1)
    """
    best = 1 << max(least - 1, 0).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            best = min(best, odd << max(-(-least // odd) - 1, 0).bit_length())
            odd *= 3
        fives *= 5
    return best


if os.name == "posix":  # elsewhere scipy's front page makes its libraries known to the system
    _enter("scipy")
_enter("scipy.special")
try:
    from scipy.special._ufuncs import erfcx, erfinv, log_ndtr, ndtr, ndtri
except ImportError:  # a scipy that keeps them elsewhere
    from scipy.special import erfcx, erfinv, log_ndtr, ndtr, ndtri
