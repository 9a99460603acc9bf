# SPDX-License-Identifier: Apache-2.0
"""The samplers there are, by name.

**Poisson**: each record is in a batch independently with probability r. The batch has any size from
nothing to everything; it is never cut, so no overflow has to be accounted for. **Fixed**: B
distinct records, every subset equally likely. **Balls-in-bins**:
:mod:`dpcohort.accounting._balls_in_bins`. In all of them the sum of clipped gradients is later
divided by the public B, never by the number of records that happened to come.

Batches are drawn exactly, with no rounding to anybody's advantage: in a Poisson batch a record is
used with probability floor(2^64 r) / 2^64 ≤ r, and a private batch of fixed size is uniform, for
keys that tie are drawn again (in a simulation a tie, below n^2 2^-65, goes by position).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from dpcohort._validate import IntArray, choice
from dpcohort.accounting._balls_in_bins import BallsInBins
from dpcohort.accounting._composition import Loss, LossPair
from dpcohort.accounting._sampler import (
    Batches,
    Neighbours,
    Pair,
    Sampler,
    WordArray,
    WordStream,
)
from dpcohort.errors import InputError


class Poisson(Sampler):
    """Each record is in a batch independently with probability r.

    Example:
        >>> Poisson().neighbours(None), str(Poisson())
        ('zero-out', 'poisson')
    """

    name = "poisson"
    natural_neighbours = "zero-out"
    is_in_library = True

    def losses(
        self, noise_multiplier: float, sampling_rate: float, neighbours: Neighbours
    ) -> tuple[Loss, ...]:
        """Zero-out is not symmetric, so both orders of the two data sets are needed."""
        shift = 1 / noise_multiplier
        if neighbours == "replace-one":
            return (LossPair(kind="replace", shift=shift, rate=sampling_rate),)
        return (
            LossPair(kind="remove", shift=shift, rate=sampling_rate),
            LossPair(kind="add", shift=shift, rate=sampling_rate),
        )

    def integrand(self, neighbours: Neighbours) -> Pair | None:
        """``remove``, which stands for ``add`` too, or ``replace``."""
        return "remove" if neighbours == "zero-out" else "replace"

    def draw(self, stream: WordStream, *, size: int, rate: float, batch_size: int) -> Batches:
        """Each step has a batch of its own."""
        if not 0 <= rate <= 1:
            raise InputError("rate", given=rate, allowed="a number from 0 to 1")
        threshold = int(rate * 2.0**64)  # exact: a product with a power of two is not rounded

        def batch(step: int) -> IntArray:
            if threshold == 2**64:  # every record, whatever the words are
                return np.arange(size, dtype=np.int64)
            words = stream.words(size, step)
            return np.flatnonzero(words < np.uint64(threshold)).astype(np.int64)

        return batch


class FixedSize(Sampler):
    """B distinct records, every subset equally likely.

    Example:
        >>> FixedSize().neighbours("zero-out")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: neighbours = 'zero-out' is not allowed: it must be 'replace-one'
        when sampler = 'fixed'. A batch of fixed size swaps records, ...
    """

    name = "fixed"
    natural_neighbours = "replace-one"
    unproved = {  # noqa: RUF012
        "zero-out": "A batch of fixed size swaps records, so one record changes the sum by up to "
        "2C; the replace-one guarantee covers zero-out. For less noise use sampler = 'poisson' "
        "with neighbours = 'zero-out'."
    }
    has_constant_batches = True

    def losses(
        self, noise_multiplier: float, sampling_rate: float, neighbours: Neighbours
    ) -> tuple[Loss, ...]:
        """One symmetric pair at twice the shift: a record is swapped for another."""
        return (LossPair(kind="fixed", shift=2 * (1 / noise_multiplier), rate=sampling_rate),)

    def integrand(self, neighbours: Neighbours) -> Pair | None:
        """``fixed``."""
        return "fixed"

    def largest_batch(self, sizes: IntArray, batch_sizes: IntArray) -> IntArray:
        """B."""
        return batch_sizes

    def draw(self, stream: WordStream, *, size: int, rate: float, batch_size: int) -> Batches:
        """Each step has a batch of its own."""
        check_batch_size(batch_size, size)

        def batch(step: int) -> IntArray:
            keys = stream.words(size, step)
            while stream.is_fresh and not np.diff(np.sort(keys)).all():  # keys that tie
                keys = stream.words(size, step)
            return smallest_keys(keys, batch_size)

        return batch


def check_batch_size(batch_size: int, size: int) -> None:
    """Refuse a batch of more records than there are, or of none."""
    if not 1 <= batch_size <= size:
        allowed = f"a whole number from 1 to the client's size {size}"
        raise InputError("batch_size", given=batch_size, allowed=allowed)


def smallest_keys(keys: WordArray, batch_size: int) -> IntArray:
    """Positions of the B smallest keys of each row, a uniform subset if the keys are independent.

    Example:
        >>> smallest_keys(np.array([[9, 1, 5], [0, 2, 1]], dtype=np.uint64), 2).tolist()
        [[1, 2], [0, 2]]
    """
    chosen = np.argpartition(keys, batch_size - 1, axis=-1)[..., :batch_size]
    return np.sort(chosen, axis=-1).astype(np.int64, copy=False)


#: All samplers by name; one more is registered here.
SAMPLERS: dict[str, Sampler] = {one.name: one for one in (Poisson(), FixedSize(), BallsInBins())}


def _known(name: str) -> str:
    return sampler_of(name).name


#: Name of a sampler, as files have it.
SamplerName = Annotated[str, AfterValidator(_known)]


def sampler_of(given: str | Sampler) -> Sampler:
    """The sampler of this name, or the one given.

    Example:
        >>> sampler_of("fixed").has_constant_batches
        True
    """
    if isinstance(given, Sampler):
        return given
    choice("sampler", given, list(SAMPLERS))
    return SAMPLERS[given]
