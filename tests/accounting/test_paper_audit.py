# SPDX-License-Identifier: Apache-2.0
"""What the paper's noise buys: findings of the numerical study, cell by cell."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting.certify import certify_epsilon
from dpcohort.accounting.deployed_noise import audit_paper_noise
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.errors import InputError

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


def test_zero_out_with_poisson_never_overspends_on_the_grid_of_the_paper():
    epsilon, steps = np.meshgrid([0.01, 0.1, 1.0, 12.0], [1, 10, 100])
    audit = audit_paper_noise(
        epsilon=epsilon, delta=1e-5, sampling_rate=RATE, steps=steps, sampler="poisson"
    )
    assert audit.holds.shape == (3, 4)
    assert audit.holds.all()
    assert (audit.certified_epsilon < 0.4 * audit.declared_epsilon).all()


def test_wasted_variance():
    poisson = audit_paper_noise(
        epsilon=[0.01, 1.0, 10.0], delta=1e-5, sampling_rate=RATE, steps=100, sampler="poisson"
    )
    np.testing.assert_allclose(np.sqrt(poisson.wasted_variance), [3.10, 5.19, 6.60], atol=0.02)
    fixed = audit_paper_noise(epsilon=12.0, delta=1e-5, sampling_rate=32 / 600, steps=1)
    assert fixed.wasted_variance[0] == pytest.approx(0.97**2, abs=0.01)  # too little noise


def test_fields_belong_together():
    audit = audit_paper_noise(
        epsilon=[0.5, 4.0], delta=[1e-5, 1e-6], sampling_rate=0.1, steps=[5, 50]
    )
    case = {"delta": [1e-5, 1e-6], "sampling_rate": 0.1, "steps": [5, 50], "sampler": "fixed"}
    paper = paper_noise_multiplier(
        epsilon=[0.5, 4.0], delta=[1e-5, 1e-6], sampling_rate=0.1, steps=[5, 50]
    )
    np.testing.assert_array_equal(audit.paper_noise_multiplier, paper)
    tight = certify_epsilon(method="pld", noise_multiplier=audit.tight_noise_multiplier, **case)
    np.testing.assert_allclose(tight, [0.5, 4.0], rtol=3e-3)
    np.testing.assert_array_equal(audit.declared_epsilon, [0.5, 4.0])
    assert (audit.sampler, audit.neighbours) == ("fixed", "replace-one")


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
