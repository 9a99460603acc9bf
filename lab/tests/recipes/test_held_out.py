# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.data import load_dataset
from dpcohort.errors import InputError
from dpcohort_lab.recipes.search import held_out


def test_the_test_set_is_not_in_it_and_no_record_is_on_both_sides():
    data = load_dataset("digits")
    split = held_out(data, 0.25)
    rows = np.concatenate([split.train_inputs, split.test_inputs])
    assert sorted(map(bytes, rows)) == sorted(map(bytes, data.train_inputs))
    assert len(split.test_inputs) == len(data) // 4
    again = held_out(data, 0.25)
    assert (again.test_labels == split.test_labels).all()


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan"), 1e-9])
def test_a_share_must_leave_records(share):
    with pytest.raises(InputError, match="held_out"):
        held_out(load_dataset("digits"), share)
