# SPDX-License-Identifier: Apache-2.0
"""A validation split of the training records: what a search looks at instead of the test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpcohort._validate import number
from dpcohort.data import Dataset
from dpcohort.errors import InputError

__all__ = ["held_out"]

#: Always the same split, so that searches can be compared and it is not chosen by its outcome.
_SEED = 20_260_222


def held_out(data: Dataset, share: float = 0.1) -> Dataset:
    """The data set with part of its training records in the place of its test records.

    The test set is not in the result, so nothing that is done with it can look there.

    Args:
        data: the whole set.
        share: of the training records to hold out.

    Example:
        >>> from dpcohort.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> split = held_out(digits)
        >>> len(digits), len(split), len(split.test_labels)
        (1442, 1298, 144)
    """
    number("held_out", share, above=0, below=1)
    count = int(share * len(data))
    if not 0 < count < len(data):
        allowed = "a share that leaves records on each side"
        raise InputError("held_out", given=share, allowed=allowed)
    held, rest = np.split(np.random.default_rng(_SEED).permutation(len(data)), [count])
    return replace(
        data,
        name=f"{data.name} (held out {share:g})",
        train_inputs=data.train_inputs[rest],
        train_labels=data.train_labels[rest],
        test_inputs=data.train_inputs[held],
        test_labels=data.train_labels[held],
    )
