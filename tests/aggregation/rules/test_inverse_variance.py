# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpcohort.aggregation import Cohort, InverseVariance
from dpcohort.errors import InputError

STDS = np.array([0.5, 1.0, 4.0, 1.0])


def test_a_hand_computed_case(make_cohort):
    weights = InverseVariance().weights(make_cohort([1.0, 2.0]))
    assert weights.tolist() == pytest.approx([0.8, 0.2])
    spread = InverseVariance(data_variance=2.0).weights(make_cohort([1.0, 2.0]))
    assert spread.tolist() == pytest.approx([2 / 3, 1 / 3])


@given(direction=arrays(np.float64, 4, elements=st.floats(-1, 1)), spread=st.floats(0, 10))
def test_no_other_weights_that_sum_to_one_have_less_variance(direction, spread):
    cohort = Cohort(
        round=0, clients=np.arange(4), draws=np.zeros(4, dtype=np.int64), noise_multipliers=STDS,
        batch_sizes=np.ones(4, dtype=np.int64), noise_stds=STDS,
    )  # fmt: skip
    weights = InverseVariance(data_variance=spread).weights(cohort)
    variances = spread + STDS**2
    assert weights.sum() == pytest.approx(1.0, abs=1e-15)
    other = weights + (direction - direction.mean())  # still sums to 1
    assert (variances * weights**2).sum() <= (variances * other**2).sum() * (1 + 1e-12)


def test_the_noise_of_the_result_is_what_the_formula_says(make_cohort):
    noise = torch.randn(4, 200_000, generator=torch.Generator().manual_seed(1)).double()
    noise *= torch.as_tensor(STDS)[:, None]
    combined = InverseVariance().combine(noise, make_cohort(STDS))
    # 1 / sum 1/s^2; the sample variance of 200,000 values has relative std 0.32 %.
    assert float(combined.var()) == pytest.approx(1 / (1 / STDS**2).sum(), rel=0.015)
    assert float(combined.var()) < 0.2 * float(noise.mean(0).var())


def test_draws_without_noise_have_a_finite_weight(make_cohort):
    weights = InverseVariance().weights(make_cohort([0.0, 2.0, 4.0]))
    assert weights[0] / weights[1] == pytest.approx(100.0)
    assert weights[1] / weights[2] == pytest.approx(4.0)
    known = InverseVariance(data_variance=1.0).weights(make_cohort([0.0, 2.0]))
    assert known[0] / known[1] == pytest.approx(5.0)  # (1 + 4) / 1: no floor is needed


@pytest.mark.parametrize("stds", [[1e-300, 1e300], [1e-300, 1e-300], [0.0, 1e-300, 1e300]])
@pytest.mark.parametrize("spread", [0.0, 1e-300, 1e300])
def test_no_noise_is_too_small_or_too_large(make_cohort, stds, spread):
    weights = InverseVariance(data_variance=spread).weights(make_cohort(stds))
    assert np.isfinite(weights).all()
    assert weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [{"floor": 0.0}, {"floor": 2.0}, {"data_variance": -1.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        InverseVariance(**bad)
