# SPDX-License-Identifier: Apache-2.0
"""Noise at the caps: valid, tight, and split as asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort import Population
from dpcohort.accounting import Contract, calibrate_noise, calibrate_remaining
from dpcohort.accounting.events import Event, History
from dpcohort.accounting.gaussian import gaussian_mu
from dpcohort.adaptive.capped_noise import report_noise
from dpcohort.errors import BudgetExceededError

CONTRACTS = {
    "poisson": Contract(),
    "poisson-replace": Contract(neighbours="replace-one"),
    "fixed": Contract(sampler="fixed", neighbours="replace-one"),
}


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_reports_alone_take_their_share_of_mu_squared(contract):
    z = report_noise(epsilon=2.0, delta=1e-5, share=0.2, reports=7, rate=1.0, contract=contract)
    mu = contract.sensitivity * math.sqrt(7) / z
    assert mu**2 == pytest.approx(0.2 * gaussian_mu(epsilon=2.0, delta=1e-5) ** 2, rel=1e-9)


def test_reports_under_replace_one_have_twice_the_noise():
    """Zeroing a record moves a centred sum by half the range, replacing it by the whole."""
    budget = {"epsilon": 2.0, "delta": 1e-5, "share": 0.2, "reports": 7, "rate": 1.0}
    once = report_noise(**budget, contract=Contract(neighbours="zero-out"))
    assert report_noise(**budget, contract=Contract(neighbours="replace-one")) == 2 * once


@pytest.mark.parametrize("rule", ["power-of-choice", "cpow-d"])
@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_promises_hold_at_the_caps_and_little_is_wasted(plan_of, people, rule, contract):
    plan = plan_of(rule, rule_settings={"d": 4}, accountant=contract)
    assert (plan.certified_epsilon <= people.epsilon).all()
    assert (plan.certified_epsilon > 0.995 * people.epsilon).all()
    plan.verify()


def test_the_noise_is_the_smallest_that_keeps_the_budget(plan_of, people):
    plan = plan_of(rule_settings={"d": 4}, report_share=0.3)
    for k in (0, 3):
        past = History(
            (
                Event(
                    noise_multiplier=plan.report_multipliers[k],
                    sampling_rate=1.0,
                    steps=int(plan.report_caps[k]),
                ),
            )
        )
        best = calibrate_remaining(
            past,
            epsilon=people.epsilon[k],
            delta=1e-5,
            sampling_rate=1 / 3,
            steps=int(plan.steps[k]),
        )
        assert best * (1 - 1e-3) < plan.noise_multipliers[k] < best * (1 + 2e-3)


def test_a_larger_share_for_reports_costs_noise_in_training(plan_of):
    small, large = (plan_of(report_share=share) for share in (0.05, 0.5))
    assert (small.noise_multipliers < large.noise_multipliers).all()
    assert (small.report_multipliers > large.report_multipliers).all()


def test_raw_reports_leave_the_whole_budget_to_training(plan_of, people):
    plan = plan_of(reports="raw")
    whole = calibrate_noise(
        epsilon=people.epsilon, delta=people.delta, sampling_rate=1 / 3, steps=plan.steps
    )
    assert plan.noise_multipliers == pytest.approx(whole, rel=2e-3)
    assert (plan.report_multipliers == 0).all()


def test_public_clients_add_no_noise(plan_of):
    nan = float("nan")
    mixed = Population.from_arrays(
        sizes=[50, 50, 50],
        epsilon=[1.0, 2.0, nan],
        delta=[1e-5, 1e-5, nan],
        public=[False, False, True],
    )
    plan = plan_of(population=mixed)
    assert plan.noise_multipliers[2] == plan.report_multipliers[2] == 0
    assert np.isnan(plan.certified_epsilon[2])


def test_paper_noise_is_guarded_together_with_the_reports(plan_of, people, settings):
    lifted = plan_of(accountant="paper", guard="lift", report_share=0.9)
    assert (lifted.certified_epsilon <= people.epsilon).all()
    assert lifted.noise.lifted.any()
    with pytest.raises(BudgetExceededError, match="together with its reports"):
        plan_of(accountant="paper", guard="refuse", report_share=0.9)
