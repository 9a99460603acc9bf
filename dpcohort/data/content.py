# SPDX-License-Identifier: Apache-2.0
"""The content of one file of a known data set, read and held against its checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.data.cifar10 import read_batch
from dpcohort.data.idx import read_idx
from dpcohort.data.sources import SOURCES, DataFile, Source
from dpcohort.errors import FileFormatError

__all__ = ["content_sha256", "read_part"]


def read_part(source: Source, part: DataFile, path: Path) -> NDArray[np.uint8]:
    """One part of a set, known to be the published bytes.

    Raises:
        FileFormatError: if the file is broken, or is not the published one; both checksums are
            named.

    Example:
        >>> mnist = SOURCES["mnist"]
        >>> read_part(mnist, mnist.files[1], Path("no-such-file"))
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: no-such-file: the file cannot be read (No such file or
        directory)
    """
    values = read_idx(path, axes=_axes(part)) if source.layout == "idx" else read_batch(path)
    found = content_sha256(source, values)
    if found != part.sha256:
        owner = _owner(found)
        hint = f" These are the bytes of {owner}." if owner else " Remove it and fetch it again."
        problem = (
            f"this is not {part.name} of {source.name}: SHA-256 of its content "
            f"{part.sha256} expected, found {found}.{hint}"
        )
        raise FileFormatError(path, problem)
    return values


def content_sha256(source: Source, values: NDArray[np.uint8]) -> str:
    """The checksum of a part's content: an IDX file decompressed, header included; else records.

    Example:
        >>> content_sha256(SOURCES["cifar10"], np.zeros((1, 3073), np.uint8))[:8]
        '5fbf904d'
    """
    digest = hashlib.sha256()
    if source.layout == "idx":
        digest.update(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes())
    view: Any = np.ascontiguousarray(values).data
    digest.update(view)
    return digest.hexdigest()


def _axes(part: DataFile) -> int:
    return 3 if "idx3" in part.name else 1


def _owner(checksum: str) -> str | None:
    """Which known set has this content: MNIST and Fashion-MNIST share their file names."""
    for source in SOURCES.values():
        for part in source.files:
            if part.sha256 == checksum:
                return f"{part.name} of {source.name}"
    return None
