# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 batches as binary records: one label byte, then 1024 red, green and blue bytes each.

Both published layouts come out as the same array of records, so one checksum serves both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.data.idx import read_exactly
from dpcohort.data.python_batch import ByteArray, walk_pickle
from dpcohort.errors import FileFormatError
from dpcohort.limits import LARGEST_PYTHON_BATCH, read_bounded

__all__ = ["PIXELS", "read_batch", "read_binary_batch", "read_python_batch"]

#: Bytes of one image, 3 x 32 x 32.
PIXELS = 3072


def read_batch(path: str | Path) -> NDArray[np.uint8]:
    """The records of a batch file, (records, 3073); ``.bin`` is the binary layout.

    Raises:
        FileFormatError: if the file cannot be read or is not such a batch.

    Example:
        >>> read_batch("no-such-file.bin")
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: no-such-file.bin: the file cannot be read (No such file or
        directory)
    """
    return read_binary_batch(path) if Path(path).suffix == ".bin" else read_python_batch(path)


def read_binary_batch(path: str | Path) -> NDArray[np.uint8]:
    """The records of a binary batch, (records, 3073).

    Raises:
        FileFormatError: if it is not a whole number of records.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "test_batch.bin"
        ...     _ = path.write_bytes(bytes([6]) + bytes(3072))
        ...     read_binary_batch(path).shape
        (1, 3073)
    """
    record = 1 + PIXELS
    try:
        size = Path(path).stat().st_size
        if size == 0 or size % record:
            problem = f"a whole number of {record}-byte records was expected, found {size:,} bytes"
            raise FileFormatError(path, problem)
        with open(path, "rb") as file:
            content = read_exactly(path, file, size)
    except OSError as error:
        raise FileFormatError(path, f"the file cannot be read ({error.strerror})") from None
    return np.frombuffer(content, np.uint8).reshape(-1, record)


def read_python_batch(path: str | Path) -> NDArray[np.uint8]:
    """The records of a "python version" batch, (records, 3073); nothing in the file is run.

    Raises:
        FileFormatError: if it is not a batch of images and labels, or asks for anything else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "data_batch_1"
        ...     _ = path.write_bytes(b"cos.system.")
        ...     read_python_batch(path)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: not a whole pickle
    """
    try:
        content = read_bounded(path, LARGEST_PYTHON_BATCH)
    except OSError as error:
        raise FileFormatError(path, f"the file cannot be read ({error.strerror})") from None
    batch = walk_pickle(path, content)
    images, labels = _entry(path, batch, "data"), _entry(path, batch, "labels")
    pixels = images.values if isinstance(images, ByteArray) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        found = "something else" if pixels is None else f"shape {pixels.shape}"
        problem = f"'data' must be an array of bytes, (records, {PIXELS}), found {found}"
        raise FileFormatError(path, problem)
    if not _are_bytes(labels) or len(labels) != len(pixels):
        problem = f"'labels' must be a list of {len(pixels)} numbers from 0 to 255"
        raise FileFormatError(path, problem)
    return np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)


def _entry(path: str | Path, batch: Any, key: str) -> Any:
    if not isinstance(batch, dict) or key not in batch:
        raise FileFormatError(path, f"a dictionary with the entry {key!r} was expected")
    return batch[key]


def _are_bytes(labels: Any) -> bool:
    return isinstance(labels, list) and all(
        type(label) is int and 0 <= label < 256 for label in labels
    )
