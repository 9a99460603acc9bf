# SPDX-License-Identifier: Apache-2.0
"""The files in which MNIST, Fashion-MNIST and CIFAR-10 are published.

IDX (both MNISTs), gzipped or not: two zero bytes, a type byte (8 = unsigned byte), the number of
axes, one big-endian 32-bit length per axis, then the values. Every part is checked, and so is that
nothing follows.

CIFAR-10 batches, in the binary layout: records of one label byte, then 1024 red, green and blue
bytes each. The "python version" is a pickle, a program that loading would run: it is not read.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.errors import FileFormatError
from dpcohort.limits import check_unpacking

#: Bytes of one image of CIFAR-10, 3 x 32 x 32.
PIXELS = 3072

_UNSIGNED_BYTE = 8
_PIECE = 1 << 22
_UNREADABLE = (OSError, EOFError, zlib.error)


def read_idx(path: str | Path, *, axes: int) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes.

    Args:
        path: the file, gzipped or not; which of the two is seen from its first bytes.
        axes: how many axes it must have (3 for images, 1 for labels).

    Raises:
        FileFormatError: if the file cannot be read, is not IDX, is cut short or too long.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "labels"
        ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([7, 2, 1]))
        ...     read_idx(path, axes=1).tolist()
        [7, 2, 1]
    """
    try:
        with open(path, "rb") as stored:
            is_gzip = stored.read(2) == b"\x1f\x8b"
        opened: Any = gzip.open(path, "rb") if is_gzip else open(path, "rb")  # noqa: SIM115
        with opened as file:
            shape = _read_header(path, file, axes)
            if is_gzip:
                check_unpacking(path, math.prod(shape), "Give the set as it was published.")
            values = _read_exactly(path, file, math.prod(shape))
    except _UNREADABLE as error:
        raise FileFormatError(path, f"the file cannot be read ({_reason(error)})") from None
    if not values:
        raise FileFormatError(path, f"there is nothing in it: its header says {shape}")
    return np.frombuffer(values, np.uint8).reshape(shape)


def read_batch(path: str | Path) -> NDArray[np.uint8]:
    """The records of a CIFAR-10 batch, (records, 3073).

    Raises:
        FileFormatError: if the file cannot be read or is not a whole number of records.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "test_batch.bin"
        ...     _ = path.write_bytes(bytes([6]) + bytes(3072))
        ...     read_batch(path).shape
        (1, 3073)
    """
    record = 1 + PIXELS
    try:
        size = Path(path).stat().st_size
        if size == 0 or size % record:
            problem = f"a whole number of {record}-byte records was expected, found {size:,} bytes"
            raise FileFormatError(path, problem)
        with open(path, "rb") as file:
            return np.frombuffer(_read_exactly(path, file, size), np.uint8).reshape(-1, record)
    except OSError as error:
        raise FileFormatError(path, f"the file cannot be read ({error.strerror})") from None


def _read_exactly(path: str | Path, file: IO[bytes], count: int) -> bytearray:
    """The rest of the file, which must be exactly ``count`` bytes.

    Read in pieces, so that a header that promises too much costs no memory.
    """
    content = bytearray()
    while piece := file.read(min(_PIECE, count + 1 - len(content))):
        content += piece
    if len(content) != count:
        found = f"{len(content):,}" if len(content) < count else "more"
        raise FileFormatError(path, f"{count:,} bytes of values were expected, found {found}")
    return content


def _read_header(path: str | Path, file: IO[bytes], axes: int) -> tuple[int, ...]:
    expected = bytes([0, 0, _UNSIGNED_BYTE, axes])
    magic = file.read(4)
    if magic != expected:
        found = magic.hex(" ") if magic else "an empty file"
        problem = f"an IDX file must start with {expected.hex(' ')}, found {found}"
        raise FileFormatError(path, problem)
    lengths = file.read(4 * axes)
    if len(lengths) != 4 * axes:
        problem = f"an IDX header of {4 + 4 * axes} bytes was expected, found {4 + len(lengths)}"
        raise FileFormatError(path, problem)
    return struct.unpack(f">{axes}I", lengths)


def _reason(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
