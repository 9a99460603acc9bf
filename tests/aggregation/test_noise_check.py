# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.aggregation.noise_check import check_declared_noise
from dpcohort.errors import InputError

HONEST = [
    [1.0] * 10,
    list(np.geomspace(0.2, 5.0, 10)),
    [1.0] * 9 + [3.0],
    [1.0] * 9 + [0.3],
]


def updates_of(stds, *, dimension=4000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shared = 0.05 * torch.randn(1, dimension, generator=generator)
    noise = torch.randn(len(stds), dimension, generator=generator)
    return shared + torch.as_tensor(np.array(stds), dtype=torch.float32)[:, None] * noise


@pytest.mark.parametrize("declared", HONEST, ids=["equal", "spread", "one more", "one less"])
@pytest.mark.parametrize("step_size", [1.0, 1e-3])
def test_honest_clients_are_not_accused(declared, step_size, make_cohort):
    found = check_declared_noise(step_size * updates_of(declared), make_cohort(declared))
    assert found.suspicious == ()
    # Large noise is shrunk against small, by a factor below 2; the documentation says so.
    assert found.ratio.min() > 0.5 * found.ratio.max()


@pytest.mark.parametrize("declared", HONEST, ids=["equal", "spread", "one more", "one less"])
@pytest.mark.parametrize("liar", [0, 4])
def test_a_client_that_sends_a_tenth_of_its_noise_is_found(declared, liar, make_cohort):
    sent = list(declared)
    sent[liar] /= 10
    found = check_declared_noise(updates_of(sent), make_cohort(declared))
    assert found.suspicious == (liar,)
    assert found.too_little[liar]


def test_a_client_that_sends_ten_times_its_noise_is_found(make_cohort):
    declared = [1.0] * 10
    sent = [1.0] * 9 + [10.0]
    found = check_declared_noise(updates_of(sent), make_cohort(declared, clients=range(20, 30)))
    assert found.suspicious == (29,)
    assert found.too_much[9]
    assert not found.too_little.any()


def test_who_declares_none_is_not_judged(make_cohort):
    declared = [0.0, 1.0, 1.0, 1.0]
    found = check_declared_noise(updates_of([0.0, 1.0, 1.0, 1.0]), make_cohort(declared))
    assert np.isnan(found.ratio[0])
    assert found.suspicious == ()
    nobody = check_declared_noise(updates_of([0.0] * 3), make_cohort([0.0] * 3))
    assert nobody.suspicious == ()


def test_updates_that_say_nothing(make_cohort):
    found = check_declared_noise(torch.zeros(3, 5), make_cohort([1.0, 1.0, 1.0]))
    assert found.suspicious == ()


@pytest.mark.parametrize("factor", [1.0, 0.5, float("nan")])
def test_a_factor_that_accuses_everybody_is_refused(factor, make_cohort):
    with pytest.raises(InputError, match="factor"):
        check_declared_noise(torch.zeros(2, 3), make_cohort([1.0, 1.0]), factor=factor)
