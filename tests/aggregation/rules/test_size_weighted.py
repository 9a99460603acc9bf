# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.aggregation import SizeWeighted
from dpcohort.errors import InputError


def test_a_hand_computed_case(make_cohort):
    cohort = make_cohort([1.0, 1.0, 1.0], clients=[2, 0, 2])
    combined = SizeWeighted(sizes=[10, 500, 20]).combine(torch.eye(3), cohort)
    assert combined.tolist() == pytest.approx([0.4, 0.2, 0.4])


@pytest.mark.parametrize("sizes", [[10, 0], [10, -1], []])
def test_a_client_without_records_is_refused(sizes):
    with pytest.raises(InputError, match="sizes"):
        SizeWeighted(sizes=sizes)
