# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcohort.data.load import load_digits, rank_within_class
from dpcohort.errors import DataMissingError


def test_the_split_is_whole_and_every_class_is_in_both_parts():
    from sklearn.datasets import load_digits as original

    digits = load_digits()
    images, labels = original(return_X_y=True)
    rows = np.concatenate([digits.train_inputs, digits.test_inputs]).reshape(-1, 64)
    kept = np.concatenate([digits.train_labels, digits.test_labels])
    ours = sorted((*row, label) for row, label in zip(rows.tolist(), kept.tolist(), strict=True))
    theirs = sorted(
        (*row, label) for row, label in zip(images.tolist(), labels.tolist(), strict=True)
    )
    assert ours == theirs
    test_counts = np.bincount(digits.test_labels, minlength=10)
    assert (test_counts == np.bincount(labels) // 5).all()


def test_pixels_become_numbers_from_0_to_1():
    digits = load_digits()
    seen = digits.normalised(digits.train_inputs)
    assert (float(seen.min()), float(seen.max())) == (0.0, 1.0)


def test_loading_twice_gives_the_same():
    assert np.array_equal(load_digits().test_inputs, load_digits().test_inputs)


def test_without_scikit_learn_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataMissingError, match="scikit-learn"):
        load_digits()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_rank_is_the_number_of_equal_labels_before(labels):
    expected = [labels[:place].count(label) for place, label in enumerate(labels)]
    assert rank_within_class(np.array(labels)).tolist() == expected
