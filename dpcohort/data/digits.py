# SPDX-License-Identifier: Apache-2.0
"""The embedded data set: 1,797 handwritten digits of 8x8 pixels, there without a network.

They come with scikit-learn (the test part of the UCI "Optical Recognition of Handwritten Digits"
set). The split is fixed and public: within each class, every fifth record in file order is a test
record, so that every class has its share and no random generator decides.
"""

from __future__ import annotations

import importlib

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.data.dataset import Dataset, Normalisation
from dpcohort.errors import DataMissingError

__all__ = ["load_digits", "rank_within_class"]

_EVERY = 5


def load_digits() -> Dataset:
    """The digits: 1,442 training and 355 test records, 10 classes, pixels from 0 to 16.

    Raises:
        DataMissingError: if scikit-learn is not installed.

    Example:
        >>> digits = load_digits()
        >>> digits.train_inputs.shape, digits.test_inputs.shape
        ((1442, 1, 8, 8), (355, 1, 8, 8))
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError:
        raise DataMissingError(
            "The digits come with scikit-learn, which is not installed. "
            'Get it with: python -m pip install "dpcohort[train]"'
        ) from None
    images, labels = datasets.load_digits(return_X_y=True)
    inputs = images.astype(np.uint8).reshape(-1, 1, 8, 8)
    classes = labels.astype(np.int64)
    is_test = rank_within_class(classes) % _EVERY == _EVERY - 1
    return Dataset(
        name="digits",
        train_inputs=inputs[~is_test],
        train_labels=classes[~is_test],
        test_inputs=inputs[is_test],
        test_labels=classes[is_test],
        classes=10,
        normalisation=Normalisation(scale=16.0),
    )


def rank_within_class(labels: IntArray) -> IntArray:
    """How many records of the same class come before each record.

    Example:
        >>> rank_within_class(np.array([5, 3, 5, 5, 3])).tolist()
        [0, 0, 1, 2, 1]
    """
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    ranks = np.empty(len(labels), np.int64)
    ranks[order] = np.arange(len(labels)) - starts
    return ranks
