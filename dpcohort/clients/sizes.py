# SPDX-License-Identifier: Apache-2.0
"""Sizes of simulated clients: a number of records shared out by weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import IntArray, float_array, whole_number
from dpcohort.clients.columns import MAX_SIZE
from dpcohort.clients.distributions import Uniform
from dpcohort.errors import InputError

__all__ = ["PAPER_SIZE_WEIGHTS", "share_out"]

#: v_k of the paper's experiments.
PAPER_SIZE_WEIGHTS = Uniform(0.5, 1.5)


def share_out(total: int, weights: ArrayLike) -> IntArray:
    """Whole sizes |M_k| = |S| v_k / Σ v that sum to exactly |S| (the paper's setup).

    Each share is rounded down; the records left over go to the largest remainders.

    Args:
        total: records of all clients together, |S|.
        weights: v_k, all above 0.

    Raises:
        InputError: if a client would get no record.

    Example:
        >>> share_out(10, [1.0, 1.0, 1.5])
        array([3, 3, 4])
    """
    total = whole_number("total_size", total, at_least=1, at_most=MAX_SIZE)
    shares = np.atleast_1d(float_array("weights", weights, above=0, at_most=1e100))
    shares = total * (shares / shares.sum())
    sizes: IntArray = np.floor(shares).astype(np.int64)
    # The rounding of a million shares may add up to more or less than the remainders suggest;
    # whole extra rounds (or one less) are dealt to all, the rest by remainder.
    extra_for_all, left = divmod(total - int(sizes.sum()), len(sizes))
    order = np.argsort(np.floor(shares) - shares, kind="stable")
    sizes += extra_for_all
    sizes[order[:left]] += 1
    empty = int(np.count_nonzero(sizes < 1))
    if empty:
        raise InputError(
            "total_size",
            given=total,
            allowed=f"large enough for all {len(sizes)} clients; {empty} would get no record",
            next_step="Raise total_size, lower count, or choose weights that differ less.",
        )
    return sizes
