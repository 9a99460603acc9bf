# SPDX-License-Identifier: Apache-2.0
"""Numpy's own files read with care: no pickle, and one clear error for whatever is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.errors import FileFormatError

__all__ = ["map_npy", "read_npz"]


def read_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """Every array of an ``.npz`` file.

    Raises:
        FileFormatError: if the file is missing, broken, something else, or needs pickle.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(Path(folder) / "two.npz", a=[1, 2], b=[0.5])
        ...     sorted(read_npz(Path(folder) / "two.npz"))
        ['a', 'b']
    """
    try:
        # Opened here: numpy leaves the file open when it turns out to be no archive.
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise FileFormatError(path, "a single array, not an .npz file of several")
            with archive:
                return {name: archive[name] for name in archive.files}
    except FileFormatError:
        raise
    except Exception as error:  # zip, zlib and numpy have a dozen errors for bytes that are wrong
        raise FileFormatError(path, _why(error)) from None


def map_npy(path: str | Path) -> NDArray[Any]:
    """The array of an ``.npy`` file, mapped into memory; changes to it stay in memory.

    Unlike an array mapped to be read only, it counts as writable, which torch wants of an array
    it shares memory with.

    Raises:
        FileFormatError: if the file is missing, broken, something else, or needs pickle.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(Path(folder) / "one.npy", [1, 2])
        ...     map_npy(Path(folder) / "one.npy").tolist()
        [1, 2]
    """
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="c")
    except Exception as error:  # as above
        raise FileFormatError(path, _why(error)) from None
    return array


def _why(error: Exception) -> str:
    if "pickle" in str(error) or "Python objects" in str(error):
        return "an array of Python objects, or no array at all; save plain numbers (no pickle)"
    if isinstance(error, OSError) and error.strerror:
        return f"the file cannot be read ({error.strerror})"
    return f"the file cannot be read ({error})"
