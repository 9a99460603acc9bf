# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from dpcohort.aggregation import Cohort, InverseVariance
from dpcohort.errors import InputError
from dpcohort_lab.aggregation import (
    ClippedMean,
    EstimatedNoise,
    GeometricMedian,
    check_declared_noise,
    low_rank_and_sparse,
)


@pytest.fixture
def make_cohort():
    """A cohort of the given noise stds."""

    def make(stds):
        stds = np.asarray(stds, dtype=np.float64)
        return Cohort(
            round=3, clients=np.arange(stds.size), draws=np.zeros(stds.size, dtype=np.int64),
            noise_multipliers=stds * 10.0, batch_sizes=np.full(stds.size, 10), noise_stds=stds,
        )  # fmt: skip

    return make


def test_long_updates_are_shortened_and_short_ones_left(make_cohort):
    updates = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    combined = ClippedMean(bound=1.0).combine(updates, make_cohort([1.0] * 3))
    assert combined.tolist() == pytest.approx([0.9 / 3, 1.2 / 3])


@pytest.mark.parametrize("lie", [1e6, 3e38, -3e38])
def test_one_liar_moves_the_result_by_no_more_than_its_share(make_cohort, lie):
    updates = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    rule, cohort = ClippedMean(bound=4.0), make_cohort([1.0] * 5)
    honest = rule.combine(updates, cohort)
    updates[2] = lie
    moved = float((rule.combine(updates, cohort) - honest).norm())
    assert 0.1 < moved <= 2 * 4.0 / 5 * (1 + 1e-5)


def test_against_a_general_minimiser(make_cohort):
    updates = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).double()
    combined = GeometricMedian(steps=500, tolerance=1e-12).combine(updates, make_cohort([1.0] * 7))

    def total(point):
        return float((updates - torch.as_tensor(point)).norm(dim=1).sum())

    best = minimize(total, updates.mean(0).numpy(), method="Nelder-Mead", options={"xatol": 1e-9})
    assert total(combined.numpy()) <= best.fun * (1 + 1e-9)
    assert total(combined.numpy()) < total(updates.mean(0).numpy()) * 0.999


def test_fewer_than_half_cannot_carry_it_away(make_cohort):
    updates = torch.randn(9, 20, generator=torch.Generator().manual_seed(1)).double()
    updates[5:] = 1e6
    honest = updates[:5]
    combined = GeometricMedian(steps=200).combine(updates, make_cohort([1.0] * 9))
    radius = float((honest - honest.mean(0)).norm(dim=1).max())
    # Two (K - b) / (K - 2 b) radii, with b = 4 of K = 9.
    assert float((combined - honest.mean(0)).norm()) < 10 * radius


def test_the_steps_that_are_allowed_are_taken(make_cohort):
    updates = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).double()
    exact, mean = GeometricMedian(steps=500, tolerance=1e-12), updates.mean(0)
    best = exact.combine(updates, make_cohort([1.0] * 7))
    once = GeometricMedian(steps=1).combine(updates, make_cohort([1.0] * 7))
    assert 0.0 < float((once - best).norm()) < float((mean - best).norm())


def test_nothing_is_of_two_parts_that_are_nothing():
    low, sparse = low_rank_and_sparse(torch.zeros(4, 6))
    assert not low.any()
    assert not sparse.any()


@pytest.mark.parametrize("bad", [{"steps": 0}, {"smoothing": 0.0}, {"tolerance": -1.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        GeometricMedian(**bad)


def noisy(stds, *, size=4000, signal=1.0, seed=0):
    """Updates that share a signal and differ by noise; also the signal."""
    generator = torch.Generator().manual_seed(seed)
    shared = signal * torch.randn(1, size, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(stds), size, generator=generator, dtype=torch.float64)
    return shared + torch.tensor(stds, dtype=torch.float64)[:, None] * noise, shared[0]


@pytest.mark.parametrize("rank", [1, 3])
def test_robust_pca_finds_the_parts_it_was_made_of(rank):
    generator = torch.Generator().manual_seed(rank)
    left = torch.randn(60, rank, generator=generator, dtype=torch.float64)
    low = left @ torch.randn(rank, 80, generator=generator, dtype=torch.float64)
    hit = torch.rand(60, 80, generator=generator) < 0.05
    sparse = torch.where(hit, 10.0 * torch.randn(60, 80, generator=generator), 0.0).double()
    found_low, found_sparse = low_rank_and_sparse(low + sparse)
    torch.testing.assert_close(found_low, low, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(found_sparse, sparse, rtol=0.0, atol=1e-4)


def test_who_declares_too_little_noise_gains_nothing(make_cohort):
    updates, signal = noisy([0.5, 0.5, 0.5, 0.5, 20.0])
    lie = make_cohort([0.5, 0.5, 0.5, 0.5, 0.1])
    deceived = InverseVariance().combine(updates, lie)
    unmoved = EstimatedNoise().combine(updates, lie)
    assert float((unmoved - signal).norm()) < 0.1 * float((deceived - signal).norm())
    assert float((unmoved - signal).norm()) < 0.25 * float((updates.mean(0) - signal).norm())


def test_updates_without_any_noise_are_averaged(make_cohort):
    cohort = make_cohort([0.0] * 3)
    assert EstimatedNoise().combine(torch.zeros(3, 4), cohort).tolist() == [0.0] * 4
    same = torch.full((3, 4), 2.5)
    torch.testing.assert_close(EstimatedNoise().combine(same, cohort), same[0])


@pytest.mark.parametrize("bad", [{"coordinates": 0}, {"floor": 0.0}, {"steps": 0}])
def test_bad_settings_of_the_estimate_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        EstimatedNoise(**bad)


HONEST = [[1.0] * 10, list(np.geomspace(0.2, 5.0, 10)), [1.0] * 9 + [3.0], [1.0] * 9 + [0.3]]


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


def test_who_declares_none_is_not_judged(make_cohort):
    declared = [0.0, 1.0, 1.0, 1.0]
    found = check_declared_noise(updates_of([0.0, 1.0, 1.0, 1.0]), make_cohort(declared))
    assert np.isnan(found.ratio[0])
    assert found.suspicious == ()
    nobody = check_declared_noise(updates_of([0.0] * 3), make_cohort([0.0] * 3))
    assert nobody.suspicious == ()


@pytest.mark.parametrize("factor", [1.0, 0.5, float("nan")])
def test_a_factor_that_accuses_everybody_is_refused(factor, make_cohort):
    with pytest.raises(InputError, match="factor"):
        check_declared_noise(torch.zeros(2, 3), make_cohort([1.0, 1.0]), factor=factor)
