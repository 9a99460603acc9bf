# SPDX-License-Identifier: Apache-2.0
"""Which client holds which records of a data set: ways to spread them, saved with a run, hashed.

Every rule gives each record to at most one client and meets the asked sizes exactly. Where the
sizes leave records over, those are no one's; without sizes every record is someone's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, IntArray, number, whole_number
from dpcohort.atomic_file import atomic_writer
from dpcohort.data._arrays import let_go, read_npz
from dpcohort.errors import FileFormatError, InputError, VerificationError
from dpcohort.text_files import of_file, parse_json

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
            given = getattr(self, name)
            array = _whole_numbers(name, given, "a list of whole numbers", may_be_empty=True).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        last = len(self.indices)
        ends = self.offsets[[0, -1]].tolist() if len(self) >= 1 else []
        if ends != [0, last] or (self.sizes < 0).any():
            allowed = f"at least two numbers that rise from 0 to the number of indices, {last}"
            raise InputError("offsets", given=self.offsets.tolist()[:8], allowed=allowed)
        _check_indices(self.indices, self.records)
        let_go(self.indices)
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

    @cached_property
    def sha256(self) -> str:
        """The hash of who holds what; it does not depend on how the file is spelled."""
        digest = hashlib.sha256(f"{_FORMAT}\n{self.records}\n{len(self)}\n".encode())
        for numbers in (self.offsets, self.indices):
            digest.update(np.ascontiguousarray(numbers, dtype="<i8").data)
        let_go(self.indices)
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
    allowed = "a list of whole numbers"
    parts = [_whole_numbers("groups", group, allowed, may_be_empty=True) for group in groups]
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
    with of_file(path, "not a whole partition file ({})", (ValueError, KeyError, TypeError)):
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
    if partition.sha256 != expected:
        raise VerificationError(
            f"{path}: the partition is not the one that was saved (SHA-256 "
            f"{expected} expected, found {partition.sha256})."
        )
    return partition


def _whole_numbers(
    field: str, values: ArrayLike, allowed: str, *, may_be_empty: bool = False
) -> IntArray:
    array = np.asarray(values)
    is_whole = array.dtype.kind in "iu" if array.size else may_be_empty
    if array.ndim != 1 or not is_whole:
        raise InputError(field, given=values, allowed=allowed)
    return array.astype(np.int64, copy=False)


def _check_indices(indices: IntArray, records: int) -> None:
    outside = (indices < 0) | (indices >= records)
    if outside.any():
        place = int(np.argmax(outside))
        allowed = f"a record number from 0 to {records - 1}"
        raise InputError(f"indices[{place}]", given=int(indices[place]), allowed=allowed)
    if records <= 8 * indices.size:
        held = np.zeros(records, dtype=np.bool_)
        held[indices] = True
        if np.count_nonzero(held) == indices.size:  # the usual case, in an eighth of the memory
            return
        owners = np.bincount(indices, minlength=1)
        named = np.arange(owners.size)
    else:  # so many records nobody holds that counting them all would cost more than sorting
        named, owners = np.unique(indices, return_counts=True)
    if owners.max(initial=0) > 1:
        place = int(np.argmax(owners > 1))
        record = int(named[place])
        allowed = "no record that belongs to two clients"
        next_step = f"Record {record} occurs {int(owners[place])} times."
        raise InputError("indices", given=record, allowed=allowed, next_step=next_step)


def paper_partition(
    labels: ArrayLike,
    *,
    sizes: ArrayLike,
    similarity: float = 100.0,
    records: ArrayLike | None = None,
    rng: np.random.Generator,
) -> Partition:
    """The paper's partition: s % of each client's records are IID, the rest comes label-sorted.

    As in SCAFFOLD (Karimireddy et al. 2020), which the paper follows: a random s % of all records
    is dealt out at random; the others are sorted by label and cut into consecutive pieces, one a
    client. Which client gets which piece is random, so that the order in which clients are listed
    (by budget, say) has nothing to do with their labels.

    Args:
        labels: of every record of the data set.
        sizes: records of each client; ``clients.distributions.share_out`` deals out a total.
        similarity: s, from 0 (label-sorted) to 100 (IID).
        records: the record numbers to deal out; all of them by default.
        rng: where every choice comes from.

    Raises:
        InputError: if the sizes ask for more records than there are.

    Example:
        >>> labels = np.repeat([0, 1], 50)
        >>> split = paper_partition(labels, sizes=[50, 50], similarity=0,
        ...     rng=np.random.default_rng(3))
        >>> sorted(split.label_counts(labels, 2).tolist())
        [[0, 50], [50, 0]]
    """
    classes = _whole_numbers("labels", labels, "one whole number for each record")
    pool = _pool(len(classes), records)
    share = number("similarity", similarity, at_least=0, at_most=100) / 100.0
    wanted = _wanted_sizes(len(pool), sizes)
    shuffled = rng.permutation(pool)[: int(wanted.sum())]
    iid_sizes = _shares_of(wanted, round(share * len(shuffled)))
    iid, rest = np.split(shuffled, [int(iid_sizes.sum())])
    # Shuffled before and sorted stably: within a label the order stays random.
    rest = rest[np.argsort(classes[rest], kind="stable")]
    clients, order = np.arange(len(wanted)), rng.permutation(len(wanted))
    owners = [np.repeat(clients, iid_sizes), np.repeat(order, (wanted - iid_sizes)[order])]
    by_owner = np.argsort(np.concatenate(owners), kind="stable")
    rule = {"name": "paper", "similarity": float(similarity)}
    return dealt(np.concatenate([iid, rest])[by_owner], wanted, len(classes), rule)


def dirichlet_partition(
    labels: ArrayLike,
    *,
    sizes: ArrayLike,
    alpha: float,
    records: ArrayLike | None = None,
    rng: np.random.Generator,
) -> Partition:
    """Each client's mix of labels is drawn from a Dirichlet distribution (Hsu et al. 2019).

    Client k draws q_k from Dir(alpha c pi), with c the number of classes and pi their shares in
    the data (so Dir(alpha, ..., alpha) where classes are equally frequent), then its records label
    by label; a label that has run out leaves its probability to the others. Clients are served in
    random order.

    Args:
        labels: of every record of the data set.
        sizes: records of each client.
        alpha: concentration, above 0; small means few labels a client.
        records: the record numbers to deal out; all of them by default.
        rng: where every choice comes from.

    Raises:
        InputError: if the sizes ask for more records than there are.

    Example:
        >>> split = dirichlet_partition(np.arange(100) % 10, sizes=[30, 50, 20], alpha=0.3,
        ...     rng=np.random.default_rng(5))
        >>> np.array_equal(np.sort(split.indices), np.arange(100))
        True
    """
    classes = _whole_numbers("labels", labels, "one whole number for each record")
    pool = _pool(len(classes), records)
    number("alpha", alpha, above=0, at_most=1e9)
    wanted = _wanted_sizes(len(pool), sizes)
    shuffled = rng.permutation(pool)
    by_label = shuffled[np.argsort(classes[shuffled], kind="stable")]
    _, starts, left = np.unique(classes[by_label], return_index=True, return_counts=True)
    concentration = np.maximum(alpha * left / left.mean(), 1e-12)
    next_free, left = starts.astype(np.int64), left.astype(np.int64)
    groups: list[IntArray] = [np.empty(0, np.int64)] * len(wanted)
    for client in rng.permutation(len(wanted)):
        takes = _draw_labels(rng.dirichlet(concentration), int(wanted[client]), left, rng)
        spans = zip(next_free, next_free + takes, strict=True)
        groups[client] = np.concatenate([by_label[start:end] for start, end in spans])
        next_free, left = next_free + takes, left - takes
    rule = {"name": "dirichlet", "alpha": float(alpha)}
    return dealt(np.concatenate(groups), wanted, len(classes), rule)


def column_partition(values: ArrayLike, *, records: ArrayLike | None = None) -> Partition:
    """One client for each distinct value of a column (a hospital, a user, a region).

    Args:
        values: of every record of the data set; text or whole numbers.
        records: the record numbers to deal out; all of them by default.

    Returns:
        A partition whose clients are named by their value, in sorted order.

    Raises:
        InputError: if a value is neither text nor a whole number.

    Example:
        >>> split = column_partition(["bern", "genf", "bern"])
        >>> split.names, split.client(0).tolist()
        (('bern', 'genf'), [0, 2])
    """
    column = np.asarray(values)
    if column.ndim != 1 or column.size == 0 or column.dtype.kind not in "iuU":
        raise InputError("values", given=values, allowed="one text or whole number for each record")
    pool = _pool(len(column), records)
    distinct, inverse, counts = np.unique(column[pool], return_inverse=True, return_counts=True)
    indices = pool[np.argsort(inverse, kind="stable")]
    named = tuple(str(value) for value in distinct)
    return dealt(indices, counts, len(column), {"name": "column"}, names=named)


def public_split(
    records: int, *, share: float, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """A random share of the records held out as public data, which needs no budget.

    Args:
        records: how many there are.
        share: of the records that become public, from 0 to below 1.
        rng: where the choice comes from.

    Returns:
        The private and the public record numbers, both sorted. Deal out the private ones with the
        ``records`` argument of a rule, and add the public ones with `join_clients`.

    Example:
        >>> private, public = public_split(10, share=0.2, rng=np.random.default_rng(1))
        >>> len(private), len(public)
        (8, 2)
    """
    number("share", share, at_least=0, below=1)
    shuffled = rng.permutation(whole_number("records", records, at_least=1))
    public, private = np.split(shuffled, [round(share * records)])
    if len(private) == 0:
        raise InputError("share", given=share, allowed="small enough to leave a private record")
    return np.sort(private), np.sort(public)


def dealt(
    indices: IntArray,
    sizes: ArrayLike,
    records: int,
    rule: Mapping[str, Any],
    names: tuple[str, ...] = (),
) -> Partition:
    """The partition whose clients hold so many of the records each, one after the other.

    Example:
        >>> dealt(np.r_[4, 0, 2], [2, 1], 5, {}).offsets.tolist()
        [0, 2, 3]
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Partition(indices=indices, offsets=offsets, records=records, rule=rule, names=names)


def _pool(total: int, records: ArrayLike | None) -> IntArray:
    """The record numbers to deal out; that none occurs twice is checked by `Partition`."""
    if records is None:
        return np.arange(total)
    pool = _whole_numbers("records", records, "a list of record numbers")
    if pool.min() < 0 or pool.max() >= total:
        raise InputError("records", given=records, allowed=f"from 0 to {total - 1}")
    return pool


def _wanted_sizes(total: int, sizes: ArrayLike) -> IntArray:
    allowed = "a whole number of at least 1 a client"
    wanted = _whole_numbers("sizes", sizes, allowed)
    if wanted.min() < 1:
        raise InputError("sizes", given=sizes, allowed=allowed)
    asked = sum(wanted.tolist())
    if asked > total:
        raise InputError(
            "sum of sizes",
            given=asked,
            allowed=f"at most the {total} records there are",
            next_step="Give smaller sizes or fewer clients, or a larger data set.",
        )
    return wanted


def _shares_of(sizes: IntArray, total: int) -> IntArray:
    """Each size's share of the total, rounded down or up (largest remainder), never above it.

    In whole numbers: a size times a total stays far below 2^63 for records that are in memory.
    """
    shares, remainders = np.divmod(sizes * total, int(sizes.sum()))
    order = np.argsort(-remainders, kind="stable")
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def _draw_labels(mix: FloatArray, need: int, left: IntArray, rng: np.random.Generator) -> IntArray:
    """How many records of each label a client takes: its mix, within what is left of each."""
    takes = np.zeros_like(left)
    while need > 0:
        free = left - takes
        weights = np.where(free > 0, mix, 0.0)
        if weights.sum() <= 0:  # every label of its mix has run out: it takes what there is
            weights = free.astype(np.float64)
        drawn = np.minimum(rng.multinomial(need, weights / weights.sum()), free)
        takes += drawn
        need -= int(drawn.sum())
    return takes
