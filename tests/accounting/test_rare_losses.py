# SPDX-License-Identifier: Apache-2.0
"""Tiny rates: never below the truth, and close to it at every size of loss."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting import rare_losses
from dpcohort.accounting.composition import Composition
from dpcohort.accounting.gaussian import gaussian_delta
from dpcohort.accounting.pairs import LossPair
from dpcohort.accounting.paper import amplified_budget
from dpcohort.accounting.rare_losses import RareLosses


def one_step_delta(shift: float, rate: float, epsilon: float) -> float:
    inner, _ = amplified_budget(epsilon=epsilon, delta=0.5, sampling_rate=rate)
    return rate * float(gaussian_delta(epsilon=float(inner), mu=shift))


@pytest.mark.parametrize("kind", ["remove", "fixed"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_a_single_step_is_the_closed_form(kind: str, epsilon: float) -> None:
    truth = one_step_delta(3.0, 1e-5, epsilon)
    found = RareLosses([(LossPair(kind=kind, shift=3.0, rate=1e-5), 1)]).delta(epsilon)
    assert truth < found < 1.02 * truth


@pytest.mark.parametrize("kind", ["remove", "replace", "fixed", "add"])
def test_many_small_losses_are_as_close_as_on_one_grid(kind: str) -> None:
    # records are seen so often that the plain composition is accurate
    pair = LossPair(kind=kind, shift=0.4, rate=4e-4)
    truth = Composition([(pair, 100_000)], tolerance=1e-6).delta(0.3)
    found = RareLosses([(pair, 100_000)], expected=truth).delta(0.3)
    assert 0.999 * truth < found < 1.2 * truth


def test_epsilon_and_delta_are_inverse() -> None:
    steps = RareLosses([(LossPair(kind="remove", shift=1 / 0.536, rate=1e-5), 100_000)])
    assert steps.epsilon(steps.delta(0.1)) == pytest.approx(0.1, rel=2e-2)


def test_steps_of_two_kinds_are_between_each_alone() -> None:
    strong = LossPair(kind="remove", shift=2.0, rate=1e-5)
    weak = LossPair(kind="remove", shift=1.9, rate=1e-5)
    both = RareLosses([(strong, 500), (weak, 500)]).delta(0.2)
    assert RareLosses([(weak, 1000)]).delta(0.2) < both < RareLosses([(strong, 1000)]).delta(0.2)


def test_no_steps_and_sums_out_of_reach_cost_nothing() -> None:
    added = LossPair(kind="add", shift=2.0, rate=1e-5)
    assert RareLosses([]).delta(0.1) == RareLosses([]).epsilon(1e-5) == 0
    assert RareLosses([(added, 1000)]).delta(0.011) == 0
    assert RareLosses([(added, 1000)]).keeps(epsilon=0.011, delta=1e-200)


def test_what_it_keeps_by_moments_it_keeps_by_the_distribution() -> None:
    pair = LossPair(kind="add", shift=1 / 0.536, rate=1e-5)
    steps = RareLosses([(pair, 100_000)], expected=1e-6)
    assert steps.keeps(epsilon=0.1, delta=1e-6)
    assert steps.delta(0.1) < 1e-6
    assert not RareLosses([(LossPair(kind="remove", shift=2.0, rate=1e-5), 99)]).keeps(
        epsilon=0.1, delta=1e-9
    )


def test_too_many_points_fall_back_on_one_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = LossPair(kind="remove", shift=2.0, rate=1e-5)
    monkeypatch.setattr(rare_losses, "_MOST_SUMS", 2)
    assert RareLosses([(pair, 50)]).delta(0.5) == Composition([(pair, 50)]).delta(0.5)
    assert RareLosses([(pair, 50)]).epsilon(1e-6) == Composition([(pair, 50)]).epsilon(1e-6)


def test_almost_no_noise_spends_the_chance_of_being_seen() -> None:
    pair = LossPair(kind="remove", shift=40.0, rate=1e-5)
    truth = -math.expm1(1000 * math.log1p(-1e-5))
    found = RareLosses([(pair, 1000)], expected=truth).delta(1.0)
    assert truth * (1 - 1e-9) < found < truth * (1 + 1e-3)


def test_the_answer_does_not_depend_on_how_finely_losses_are_sorted() -> None:
    for kind, shift in (("remove", 1 / 0.698), ("replace", 1 / 0.7), ("fixed", 2 / 1.36)):
        parts = [(LossPair(kind=kind, shift=shift, rate=1e-5), 100_000)]
        coarse, fine = (
            RareLosses(parts, coarseness=c, expected=1e-9).delta(0.1) for c in (1.0, 0.1)
        )
        assert np.isclose(coarse, fine, rtol=0.06)
