# SPDX-License-Identifier: Apache-2.0
"""Which client holds which records of a data set: frozen, saved with a run, hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import IntArray, whole_number
from dpcohort.atomic_file import atomic_writer
from dpcohort.data.npz import read_npz
from dpcohort.errors import FileFormatError, InputError, VerificationError
from dpcohort.text_files import parse_json

__all__ = ["Partition", "join_clients", "load_partition", "save_partition"]

_FORMAT = "dpcohort partition 1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """The records of each client, as one array and the places where each client's part starts.

    Attributes:
        indices: record numbers, client after client; none occurs twice.
        offsets: client k holds ``indices[offsets[k] : offsets[k + 1]]``; one entry more than
            clients.
        records: how many records the data set has; some may be no one's.
        rule: how it was made, in words and numbers that JSON can hold.
        names: what the clients are called; empty where they have numbers only.

    Example:
        >>> partition = Partition(indices=np.r_[4, 0, 2], offsets=np.r_[0, 2, 3], records=5)
        >>> partition.client(0).tolist(), partition.sizes.tolist()
        ([4, 0], [2, 1])
    """

    indices: IntArray
    offsets: IntArray
    records: int
    rule: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        whole_number("records", self.records, at_least=1)
        for name in ("indices", "offsets"):
            # A read-only view: a partition that was hashed does not change.
            array = _whole_numbers(name, getattr(self, name)).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        _check_offsets(self.offsets, len(self.indices))
        _check_indices(self.indices, self.records)
        if self.names and len(self.names) != len(self):
            allowed = f"one for each of the {len(self)} clients"
            raise InputError("number of names", given=len(self.names), allowed=allowed)

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> IntArray:
        """The number of records of each client."""
        return np.diff(self.offsets)

    def client(self, k: int) -> IntArray:
        """The record numbers of client ``k``, counted from 0."""
        if not 0 <= k < len(self):
            raise InputError("client", given=k, allowed=f"a number from 0 to {len(self) - 1}")
        return self.indices[self.offsets[k] : self.offsets[k + 1]]

    def label_counts(self, labels: IntArray, classes: int) -> IntArray:
        """How many records of each class each client holds, (clients, classes).

        SENSITIVE: exact counts of private labels; for simulation and tests.

        Example:
            >>> halves = Partition(indices=np.arange(4), offsets=np.array([0, 2, 4]), records=4)
            >>> halves.label_counts(np.array([0, 0, 1, 0]), 2).tolist()
            [[2, 0], [1, 1]]
        """
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * classes + labels[self.indices], minlength=len(self) * classes)
        return flat.reshape(len(self), classes)

    @property
    def sha256(self) -> str:
        """The hash of who holds what; it does not depend on how the file is spelled."""
        digest = hashlib.sha256(f"{_FORMAT}\n{self.records}\n{len(self)}\n".encode())
        digest.update(self.offsets.astype("<i8").tobytes())
        digest.update(self.indices.astype("<i8").tobytes())
        digest.update(json.dumps(self.names).encode())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """What it is, in a form that JSON can hold."""
        sizes = self.sizes
        return {
            "format": _FORMAT,
            "rule": dict(self.rule),
            "clients": len(self),
            "records": self.records,
            "unused_records": self.records - len(self.indices),
            "smallest_client": int(sizes.min()),
            "largest_client": int(sizes.max()),
            "sha256": self.sha256,
        }


def join_clients(
    partition: Partition, groups: Sequence[ArrayLike], *, names: Sequence[str] = ()
) -> Partition:
    """The partition with more clients at its end, for instance public ones.

    Args:
        partition: what is there.
        groups: the record numbers of each new client.
        names: what the new clients are called, where the old ones have names.

    Raises:
        InputError: if a record is already someone's.

    Example:
        >>> first = Partition(indices=np.array([0, 1]), offsets=np.array([0, 2]), records=4)
        >>> join_clients(first, [[2, 3]]).sizes.tolist()
        [2, 2]
    """
    parts = [_whole_numbers("groups", group) for group in groups]
    ends = int(partition.offsets[-1]) + np.cumsum([len(part) for part in parts], dtype=np.int64)
    return replace(
        partition,
        indices=np.concatenate([partition.indices, *parts]),
        offsets=np.concatenate([partition.offsets, ends]),
        names=(*partition.names, *names),
        rule={**partition.rule, "joined_clients": len(parts)},
    )


def save_partition(partition: Partition, path: str | Path) -> None:
    """Write the partition as an ``.npz`` file without pickle; it appears whole or not at all.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     one = Partition(indices=np.r_[1, 0], offsets=np.r_[0, 2], records=2)
        ...     save_partition(one, Path(folder) / "partition.npz")
        ...     [path.name for path in Path(folder).iterdir()]
        ['partition.npz']
    """
    description = {**partition.describe(), "names": list(partition.names)}
    with atomic_writer(path, binary=True) as file:
        np.savez_compressed(
            file,  # opened in binary
            indices=partition.indices,
            offsets=partition.offsets,
            description=np.frombuffer(json.dumps(description).encode(), np.uint8),
        )


def load_partition(path: str | Path) -> Partition:
    """The partition in a file, checked against the hash stored with it.

    Raises:
        FileFormatError: if the file is missing, broken or something else.
        VerificationError: if its content is not what was hashed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "partition.npz"
        ...     whole = Partition(indices=np.arange(3), offsets=np.array([0, 3]), records=3)
        ...     save_partition(whole, path)
        ...     load_partition(path).client(0).tolist()
        [0, 1, 2]
    """
    arrays = read_npz(path)
    try:
        description = parse_json(arrays["description"].tobytes())
        if description["format"] != _FORMAT:
            raise FileFormatError(path, f"{_FORMAT!r} expected, found {description['format']!r}")
        expected = description["sha256"]
        partition = Partition(
            indices=arrays["indices"],
            offsets=arrays["offsets"],
            records=description["records"],
            rule=description["rule"],
            names=tuple(description["names"]),
        )
    except FileFormatError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(path, f"not a whole partition file ({error})") from None
    if partition.sha256 != expected:
        raise VerificationError(
            f"{path}: the partition is not the one that was saved (SHA-256 "
            f"{expected} expected, found {partition.sha256})."
        )
    return partition


def _whole_numbers(field_name: str, values: ArrayLike) -> IntArray:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(field_name, given=values, allowed="a list of whole numbers")
    return array.astype(np.int64, copy=False)


def _check_offsets(offsets: IntArray, length: int) -> None:
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != length or (np.diff(offsets) < 0).any():
        allowed = f"at least two numbers that rise from 0 to the number of indices, {length}"
        raise InputError("offsets", given=offsets.tolist()[:8], allowed=allowed)


def _check_indices(indices: IntArray, records: int) -> None:
    outside = (indices < 0) | (indices >= records)
    if outside.any():
        place = int(np.argmax(outside))
        allowed = f"a record number from 0 to {records - 1}"
        raise InputError(f"indices[{place}]", given=int(indices[place]), allowed=allowed)
    if records <= 8 * indices.size:
        owners = np.bincount(indices, minlength=1)
        twice = np.flatnonzero(owners > 1)
        times = owners[twice]
    else:  # so many records nobody holds that counting them all would cost more than sorting
        named, owners = np.unique(indices, return_counts=True)
        twice, times = named[owners > 1], owners[owners > 1]
    if twice.size:
        record = int(twice[0])
        allowed = "no record that belongs to two clients"
        next_step = f"Record {record} occurs {int(times[0])} times."
        raise InputError("indices", given=record, allowed=allowed, next_step=next_step)
