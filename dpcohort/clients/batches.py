# SPDX-License-Identifier: Apache-2.0
"""How many records each client is expected to use in a local step, B_k."""

from __future__ import annotations

import numpy as np

from dpcohort._validate import BoolArray, IntArray
from dpcohort.errors import InputError
from dpcohort.training import Training

__all__ = ["DEFAULT_SAMPLING_RATE", "expected_batches"]

#: Share of its records a client uses in a step when nobody named a batch, as in the paper's figure
#: of selection probabilities.
DEFAULT_SAMPLING_RATE = 0.1


def expected_batches(
    training: Training, *, ids: tuple[str, ...], sizes: IntArray, own_batches: IntArray
) -> IntArray:
    """The expected batch of each client: its own first, then the one of the training settings.

    Args:
        training: ``batch_size``, or ``sampling_rate``, or neither for 10 % of the records.
        ids: of the clients, named in errors.
        sizes: their numbers of records.
        own_batches: the batches they name themselves, 0 for none.

    Raises:
        InputError: if a batch is larger than its client and ``oversized_batch`` is ``"error"``.

    Example:
        >>> sizes, own = np.array([600, 50]), np.array([0, 25])
        >>> expected_batches(Training(batch_size=128), ids=("a", "b"), sizes=sizes, own_batches=own)
        array([128,  25])
    """
    if training.batch_size is not None:
        # No size reaches 2^62: a batch beyond it is as oversized as that, and fits an int64.
        shared = np.full(len(ids), min(training.batch_size, 2**62), dtype=np.int64)
    else:
        rate = training.sampling_rate or DEFAULT_SAMPLING_RATE
        shared = np.maximum(np.rint(rate * sizes), 1).astype(np.int64)
    batches = np.where(own_batches > 0, own_batches, shared)
    oversized = batches > sizes
    if training.oversized_batch == "error" and oversized.any():
        raise _oversized(ids, sizes, batches, oversized)
    return np.asarray(np.minimum(batches, sizes), dtype=np.int64)


def _oversized(
    ids: tuple[str, ...], sizes: IntArray, batches: IntArray, oversized: BoolArray
) -> InputError:
    row = int(oversized.argmax())
    others = int(np.count_nonzero(oversized)) - 1
    more = f" ({others} other client{'s' * (others > 1)} too)" if others else ""
    return InputError(
        "batch_size",
        given=int(batches[row]),
        allowed=f"at most the size of the client, but {ids[row]!r} has {sizes[row]} records{more}",
        next_step="Lower the batch size, give such clients their own in a batch_size column, or "
        'set training.oversized_batch = "whole" to let them use all their records in each step.',
    )
