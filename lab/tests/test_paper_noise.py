# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort_lab.paper_noise import audit_paper_noise

RATE = 128 / 600


@pytest.mark.parametrize(
    ("epsilon", "steps", "poisson", "fixed"),
    [
        (1.0, 1, 0.22, 0.67),
        (1.0, 100, 0.16, 0.35),
        (12.0, 1, 0.35, 1.003),
        (12.0, 100, 0.09, 0.22),
        (8.0, 10, 0.11, 0.30),
        (0.1, 1000, 0.27, 0.59),
    ],
)
def test_share_of_the_declared_epsilon_that_is_spent(epsilon, steps, poisson, fixed):
    for sampler, share in (("poisson", poisson), ("fixed", fixed)):
        audit = audit_paper_noise(
            epsilon=epsilon, delta=1e-5, sampling_rate=RATE, steps=steps, sampler=sampler
        )
        spent = audit.certified_epsilon / audit.declared_epsilon
        assert spent[0] == pytest.approx(share, abs=0.01)
        assert audit.holds[0] == (share <= 1)


def test_cells_in_which_the_paper_overspends():
    """Fixed batches, replace-one, one step, ε = 12; and no subsampling beyond ε = 13.6."""
    rates = np.array([32 / 600, 64 / 600, 128 / 600, 32 / 500, 64 / 500])
    audit = audit_paper_noise(epsilon=12.0, delta=1e-5, sampling_rate=rates, steps=1)
    spent = audit.certified_epsilon / 12
    np.testing.assert_allclose(spent, [1.044, 1.021, 1.003, 1.037, 1.016], atol=0.002)
    assert not audit.holds.any()
    whole = audit_paper_noise(
        epsilon=[12.0, 14.0, 16.0, 20.0], delta=1e-5, sampling_rate=1.0, steps=7
    )
    spent = whole.certified_epsilon / whole.declared_epsilon
    np.testing.assert_allclose(spent, [0.974, 1.007, 1.039, 1.103], atol=0.002)
    np.testing.assert_array_equal(whole.holds, [True, False, False, False])


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"sampling_rate": 2.0},
        {"steps": 0},
        {"sampler": "shuffle"},
        {"epsilon": [1.0, 2.0], "steps": [1, 2, 3]},
    ],
)
def test_bad_input_is_refused(change):
    good = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 10}
    with pytest.raises(InputError):
        audit_paper_noise(**{**good, **change})
