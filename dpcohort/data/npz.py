# SPDX-License-Identifier: Apache-2.0
"""Numpy's own files read with care: no pickle, and one clear error for whatever is wrong."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.errors import FileFormatError
from dpcohort.limits import check_unpacking
from dpcohort.plain_text import one_line

__all__ = ["map_npy", "read_npz"]

_READ_HEADER: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


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
            if file.read(6) == np.lib.format.MAGIC_PREFIX:
                raise FileFormatError(path, "a single array, not an .npz file of several")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            with archive:
                _check_sizes(path, archive.zip)
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


def _check_sizes(path: str | Path, archive: zipfile.ZipFile | None) -> None:
    """Refuse arrays that would be larger than the file says or larger than a file may become.

    numpy makes room for what an array's header says before it reads one number of it.
    """
    members = [] if archive is None else archive.infolist()
    check_unpacking(
        path,
        sum(member.file_size for member in members),
        "Save it without compression (numpy.savez), or as a folder of .npy files.",
    )
    for member in members:
        assert archive is not None
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = _READ_HEADER.get(version)
            if read is None:
                raise ValueError(f"{member.filename!r} has the unknown version {version}")
            shape, _, dtype = read(file)
            if dtype.hasobject:
                raise ValueError("Python objects")
            size = math.prod(shape) * dtype.itemsize
            if not dtype.itemsize or size != member.file_size - file.tell():
                raise ValueError(
                    f"{one_line(member.filename, 100)} says it has {size:,} bytes of numbers and "
                    f"has {member.file_size - file.tell():,}"
                )


def _why(error: Exception) -> str:
    if "pickle" in str(error) or "Python objects" in str(error):
        return "an array of Python objects, or no array at all; save plain numbers (no pickle)"
    if isinstance(error, OSError) and error.strerror:
        return f"the file cannot be read ({error.strerror})"
    return f"the file cannot be read ({error})"
