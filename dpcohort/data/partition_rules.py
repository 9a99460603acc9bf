# SPDX-License-Identifier: Apache-2.0
"""Ways to spread the records of one data set over clients.

Every rule gives each record to at most one client and meets the asked sizes exactly. Where the
sizes leave records over, those are no one's; without sizes every record is someone's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, IntArray, number, whole_number
from dpcohort.clients.distributions import Uniform, share_out
from dpcohort.data.partition import Partition
from dpcohort.errors import InputError

__all__ = ["column_partition", "dirichlet_partition", "paper_partition", "public_split"]


def paper_partition(
    labels: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    count: int | None = None,
    low: float = 0.5,
    high: float = 1.5,
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
        sizes: records of each client; or
        count: number of clients, whose sizes are then in proportion to U(low, high).
        low: smallest weight of a client.
        high: largest weight of a client; equal to ``low`` for equal sizes.
        similarity: s, from 0 (label-sorted) to 100 (IID).
        records: the record numbers to deal out; all of them by default.
        rng: where every choice comes from.

    Raises:
        InputError: if the sizes ask for more records than there are.

    Example:
        >>> labels = np.repeat([0, 1], 50)
        >>> split = paper_partition(labels, count=2, low=1, high=1, similarity=0,
        ...     rng=np.random.default_rng(3))
        >>> sorted(split.label_counts(labels, 2).tolist())
        [[0, 50], [50, 0]]
    """
    classes, pool = _labels_and_pool(labels, records)
    share = number("similarity", similarity, at_least=0, at_most=100) / 100.0
    wanted = _wanted_sizes(len(pool), sizes, count, low, high, rng)
    shuffled = rng.permutation(pool)[: int(wanted.sum())]
    iid_sizes = _shares_of(wanted, round(share * len(shuffled)))
    iid, rest = np.split(shuffled, [int(iid_sizes.sum())])
    # Shuffled before and sorted stably: within a label the order stays random.
    rest = rest[np.argsort(classes[rest], kind="stable")]
    clients, order = np.arange(len(wanted)), rng.permutation(len(wanted))
    owners = [np.repeat(clients, iid_sizes), np.repeat(order, (wanted - iid_sizes)[order])]
    by_owner = np.argsort(np.concatenate(owners), kind="stable")
    rule: dict[str, Any] = {"name": "paper", "similarity": float(similarity)}
    if sizes is None:
        rule.update(low=float(low), high=float(high))
    return Partition(
        indices=np.concatenate([iid, rest])[by_owner],
        offsets=np.concatenate([[0], np.cumsum(wanted)]),
        records=len(classes),
        rule=rule,
    )


def dirichlet_partition(
    labels: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    count: int | None = None,
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
        sizes: records of each client; or
        count: number of clients of equal size (within one record).
        alpha: concentration, above 0; small means few labels a client.
        records: the record numbers to deal out; all of them by default.
        rng: where every choice comes from.

    Raises:
        InputError: if the sizes ask for more records than there are.

    Example:
        >>> split = dirichlet_partition(np.arange(100) % 10, count=7, alpha=0.3,
        ...     rng=np.random.default_rng(5))
        >>> np.array_equal(np.sort(split.indices), np.arange(100))
        True
    """
    classes, pool = _labels_and_pool(labels, records)
    number("alpha", alpha, above=0, at_most=1e9)
    wanted = _wanted_sizes(len(pool), sizes, count, 1.0, 1.0, rng)
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
    return Partition(
        indices=np.concatenate(groups),
        offsets=np.concatenate([[0], np.cumsum(wanted)]),
        records=len(classes),
        rule={"name": "dirichlet", "alpha": float(alpha)},
    )


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
    return Partition(
        indices=pool[np.argsort(inverse, kind="stable")],
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        records=len(column),
        rule={"name": "column"},
        names=tuple(str(value) for value in distinct),
    )


def public_split(
    records: int | ArrayLike, *, share: float, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """A random share of the records held out as public data, which needs no budget.

    Args:
        records: how many there are, or their numbers.
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
    if isinstance(records, int | np.integer):
        pool = np.arange(whole_number("records", records, at_least=1))
    else:
        pool = _pool(int(np.max(records, initial=0)) + 1, records)
    shuffled = rng.permutation(pool)
    public, private = np.split(shuffled, [round(share * len(pool))])
    if len(private) == 0:
        raise InputError("share", given=share, allowed="small enough to leave a private record")
    return np.sort(private), np.sort(public)


def _labels_and_pool(labels: ArrayLike, records: ArrayLike | None) -> tuple[IntArray, IntArray]:
    classes = np.asarray(labels)
    if classes.ndim != 1 or classes.size == 0 or classes.dtype.kind not in "iu":
        raise InputError("labels", given=labels, allowed="one whole number for each record")
    return classes.astype(np.int64, copy=False), _pool(len(classes), records)


def _pool(total: int, records: ArrayLike | None) -> IntArray:
    """The record numbers to deal out; their range and uniqueness are checked by `Partition`."""
    if records is None:
        return np.arange(total)
    pool = np.asarray(records)
    if pool.ndim != 1 or pool.size == 0 or pool.dtype.kind not in "iu":
        raise InputError("records", given=records, allowed="a list of record numbers")
    if pool.min() < 0 or pool.max() >= total:
        raise InputError("records", given=records, allowed=f"from 0 to {total - 1}")
    return pool.astype(np.int64)


def _wanted_sizes(
    total: int,
    sizes: ArrayLike | None,
    count: int | None,
    low: float,
    high: float,
    rng: np.random.Generator,
) -> IntArray:
    if (sizes is None) == (count is None):
        raise InputError.because("Give either the sizes of the clients or their count, not both.")
    if sizes is None:
        number_of_clients = whole_number("count", count, at_least=1, at_most=total)
        if low == number("high", high, above=0):
            return share_out(total, np.ones(number_of_clients))
        return share_out(total, Uniform(low, high).draw(number_of_clients, rng))
    wanted = np.asarray(sizes)
    if wanted.ndim != 1 or wanted.size == 0 or wanted.dtype.kind not in "iu" or wanted.min() < 1:
        raise InputError("sizes", given=sizes, allowed="a whole number of at least 1 a client")
    asked = sum(int(size) for size in wanted)
    if asked > total:
        raise InputError(
            "sum of sizes",
            given=asked,
            allowed=f"at most the {total} records there are",
            next_step="Give smaller sizes or fewer clients, or a larger data set.",
        )
    return wanted.astype(np.int64)


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
