# SPDX-License-Identifier: Apache-2.0
"""Arrays that take minutes and that no private record enters, kept on disk.

Two kinds are kept: the features of a published data set (``mnist``, ``fashion-mnist``, ``cifar10``,
whose bytes were held against their published checksums when they were read), and the moments of
synthetic images that features are whitened with. Features of any other records never are: what is
computed from a person's records belongs where the records are.

They lie in the folder ``features`` beside downloaded data sets (``$DPCOHORT_DATA`` or the user's
cache), each named by the hash of all that it was computed from. A file whose content has not the
hash noted beside it is computed again. The variable ``DPCOHORT_KEEP_FEATURES=0`` turns it off; the
folder can be removed at any time.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.atomic_file import atomic_writer
from dpcohort.data import user_cache

#: Changed with every change of what a feature is, beyond rounding.
_VERSION = 1
_VARIABLE = "DPCOHORT_KEEP_FEATURES"
_DATA_VARIABLE = "DPCOHORT_DATA"
#: Bytes in the folder beyond which the files used longest ago go.
_MOST_BYTES = 8 << 30
#: What is computed sooner than it is read is not kept: so many bytes of features at least.
_LEAST_BYTES = 1 << 24


def kept(
    parts: tuple[Any, ...], shape: tuple[int, ...], compute: Callable[[], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """The array that ``compute`` gives, from disk where it was computed before.

    Args:
        parts: all that it follows from: arrays, and values whose ``repr`` says everything.
        shape: of the array.
        compute: makes it.

    Returns:
        The array; one from disk is mapped into memory, and changes to it stay in memory.

    Example:
        >>> kept(("settings",), (2,), lambda: np.ones(2, np.float32)).tolist()
        [1.0, 1.0]
    """
    if os.environ.get(_VARIABLE, "1") == "0" or 4 * int(np.prod(shape)) < _LEAST_BYTES:
        return compute()
    digest = hashlib.sha256(f"dpcohort features {_VERSION} {shape}".encode())
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(repr(part).encode())
    folder = Path(os.environ.get(_DATA_VARIABLE) or user_cache()).expanduser() / "features"
    path = folder / f"{digest.hexdigest()[:40]}.npy"
    found = _read(path, shape)
    if found is not None:
        logging.getLogger("dpcohort").info("features read from %s", path)
        return found
    computed = compute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(folder, computed.nbytes)
        with atomic_writer(path, binary=True) as file:
            np.save(file, computed)
        with atomic_writer(path.with_suffix(".sha256")) as file:
            file.write(hashlib.sha256(np.ascontiguousarray(computed).data).hexdigest())
    except OSError as error:  # a full disk, or a folder that may not be written: go on without
        logging.getLogger("dpcohort").info("features are not kept: %s", error)
    return computed


def _read(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """The array, or None where it is not there or not whole."""
    try:
        found: NDArray[np.float32] = np.lib.format.open_memmap(path, mode="c")
        noted = path.with_suffix(".sha256").read_text(encoding="ascii")
        os.utime(path)  # used just now
    except (OSError, ValueError):
        return None
    whole = found.dtype == np.float32 and found.shape == shape
    if not whole or hashlib.sha256(np.ascontiguousarray(found).data).hexdigest() != noted:
        return None
    return found


def _make_room(folder: Path, needed: int) -> None:
    """Remove what was used longest ago until so many bytes more fit."""
    files = sorted(folder.glob("*.npy"), key=lambda path: path.stat().st_mtime)
    total = sum(path.stat().st_size for path in files)
    for path in files:
        if total + needed <= _MOST_BYTES:
            return
        total -= path.stat().st_size
        path.unlink(missing_ok=True)
        path.with_suffix(".sha256").unlink(missing_ok=True)
