# SPDX-License-Identifier: Apache-2.0
"""Adaptive plans: caps, noise that keeps every budget at them, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training
from dpcohort.accounting import (
    Contract,
    Event,
    History,
    calibrate_noise,
    calibrate_remaining,
    gaussian_mu,
)
from dpcohort.adaptive._planning import make_caps, report_noise
from dpcohort.adaptive._rules import ClusteredUpdates, DonatedData, PowerOfChoice
from dpcohort.errors import BudgetExceededError, InputError, VerificationError

# caps


def test_the_automatic_cap_is_twice_the_mean(people, settings):
    draws, reports = make_caps(people, settings, PowerOfChoice(d=4))
    assert draws.tolist() == [3] * 8  # ceil(2 * 6 * 2 / 8)
    assert reports.tolist() == [6] * 8  # min(6, ceil(2 * 6 * 4 / 8))


def test_a_cap_is_at_most_the_rounds_unless_more_is_needed():
    three = Population.from_arrays(sizes=[50] * 3, epsilon=1.0, delta=1e-5)
    draws, _ = make_caps(three, Training(rounds=4, cohort_size=3, batch_size=5), PowerOfChoice())
    assert draws.tolist() == [4] * 3
    draws, _ = make_caps(three, Training(rounds=4, cohort_size=6, batch_size=5), PowerOfChoice())
    assert draws.tolist() == [8] * 3


def test_public_clients_have_no_cap_of_their_own(settings):
    mixed = Population.from_arrays(
        sizes=[50] * 3,
        epsilon=[1.0, 1.0, float("nan")],
        delta=[1e-5, 1e-5, float("nan")],
        public=[False, False, True],
    )
    draws, reports = make_caps(mixed, settings, PowerOfChoice(), participation_cap=1)
    assert draws.tolist() == [1, 1, 12]
    assert reports.tolist() == [6, 6, 6]


@pytest.mark.parametrize("cap", [0, -1, 1.5, "many", True])
def test_a_cap_of_nothing_is_refused(people, settings, cap):
    with pytest.raises(InputError, match="participation_cap"):
        make_caps(people, settings, PowerOfChoice(), participation_cap=cap)
    with pytest.raises(InputError, match="report_cap"):
        make_caps(people, settings, PowerOfChoice(), report_cap=cap)


def test_caps_that_cannot_hold_the_training_are_refused(people, settings):
    with pytest.raises(InputError, match="at least 2 for 6 rounds of 2 draws among 8 clients"):
        make_caps(people, settings, PowerOfChoice(), participation_cap=1)


def test_settings_that_do_not_fit_the_population_are_refused(people, settings):
    with pytest.raises(InputError, match=r"d = 9 .* at most the number of clients, 8"):
        make_caps(people, settings, PowerOfChoice(d=9))
    with pytest.raises(InputError, match=r"d = 1 .* at least the cohort size, 2"):
        make_caps(people, settings, PowerOfChoice(d=1))
    with pytest.raises(InputError, match=r"clusters = 9 .* at most the number of clients, 8"):
        make_caps(people, settings, ClusteredUpdates(clusters=9))
    with pytest.raises(InputError, match="needs public clients"):
        make_caps(people, settings, DonatedData())


# noise at the caps


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
                Event.of(
                    noise_multiplier=plan.reports.multipliers[k],
                    sampling_rate=1.0,
                    steps=int(plan.reports.caps[k]),
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


def test_raw_reports_leave_the_whole_budget_to_training(plan_of, people):
    plan = plan_of(reports="raw")
    whole = calibrate_noise(
        epsilon=people.epsilon, delta=people.delta, sampling_rate=1 / 3, steps=plan.steps
    )
    assert plan.noise_multipliers == pytest.approx(whole, rel=2e-3)
    assert (plan.reports.multipliers == 0).all()


def test_paper_noise_is_guarded_together_with_the_reports(plan_of, people, settings):
    lifted = plan_of(accountant="paper", guard="lift", report_share=0.9)
    assert (lifted.certified_epsilon <= people.epsilon).all()
    assert lifted.noise.lifted.any()
    with pytest.raises(BudgetExceededError, match="together with its reports"):
        plan_of(accountant="paper", guard="refuse", report_share=0.9)


# the plan


def test_a_rule_can_be_an_object(plan_of):
    assert plan_of(PowerOfChoice(d=4)) == plan_of(rule_settings={"d": 4})


@pytest.mark.parametrize("given", [None, 3, object], ids=["none", "number", "class"])
def test_what_is_no_rule_is_refused(plan_of, given):
    with pytest.raises(InputError, match="is no adaptive rule"):
        plan_of(given)


def test_unknown_rules_and_settings_name_the_nearest(plan_of):
    with pytest.raises(InputError, match="Did you mean 'power-of-choice'"):
        plan_of("power-of-choise")
    with pytest.raises(InputError, match="Did you mean 'gamma'"):
        plan_of("ucb-cs", rule_settings={"gama": 0.5})
    with pytest.raises(InputError, match="reports"):
        plan_of(reports="noisy")


def test_spending_grows_with_draws_to_the_certificate(plan_of, people):
    """Of a rule that looks at no output: how often it draws is as good as fixed."""
    public = Population.from_arrays(
        sizes=[30] * 8,
        epsilon=[*people.epsilon[:7], np.nan],
        delta=[1e-5] * 7 + [np.nan],
        public=[False] * 7 + [True],
    )
    plan = plan_of("donated", population=public)
    none = np.zeros(8, dtype=np.int64)
    assert (plan.spent_epsilon(none)[:7] == 0).all()
    once, twice = (plan.spent_epsilon(none + k)[:7] for k in (1, 2))
    assert (once > 0).all()
    assert (once < twice).all()
    full = plan.spent_epsilon(plan.counts)
    assert full[:7] == pytest.approx(plan.certified_epsilon[:7], rel=1e-3)
    assert np.isnan(full[7])
    beyond = plan.spent_epsilon(plan.counts + 3)
    assert (beyond[:7] > people.epsilon[:7]).all()


@pytest.mark.parametrize("rule", ["power-of-choice", "rpow-d", "clustered"])
def test_numbers_that_outputs_chose_are_certified_at_the_caps(plan_of, rule):
    """A rule could stop at the output that tells most: a client's own count proves nothing."""
    plan = plan_of(rule)
    once = np.array([1, 0, 0, 0, 0, 0, 0, 0])
    asked = np.minimum(np.roll(once, 1), plan.reports.caps)
    took_part = once + asked > 0  # who was only asked took part too
    full = plan.spent_epsilon(plan.counts, plan.reports.caps, method="pld")
    assert full == pytest.approx(plan.certified_epsilon, rel=1e-3)
    spent = plan.spent_epsilon(once, asked, method="pld")
    assert np.array_equal(spent, np.where(took_part, full, 0.0))
    some = plan.spent_epsilon(once, asked, clients=np.array([1, 0]), method="pld")
    assert np.array_equal(some, spent[[1, 0]])


@pytest.mark.parametrize("what", ["draws", "reports"])
def test_what_is_beyond_a_cap_is_not_hidden(plan_of, people, what):
    plan = plan_of()
    draws, reports = plan.counts, plan.reports.caps
    beyond = (draws + 1, 0 * reports) if what == "draws" else (0 * draws, reports + 3)
    assert (plan.spent_epsilon(*beyond) > people.epsilon).all()


def with_noise(plan, column, values):
    """The plan with other noise on its draws or on its reports."""
    if column == "noise_multiplier":
        return replace(plan, noise=replace(plan.noise, multipliers=values))
    reports = replace(plan.reports, multipliers=values)
    return replace(plan, participation=replace(plan.participation, reports=reports))


def test_a_plan_with_too_little_noise_does_not_verify(plan_of):
    plan = plan_of()
    changed = with_noise(plan, "noise_multiplier", plan.noise_multipliers * 0.9)
    with pytest.raises(VerificationError, match="8 clients would spend more"):
        changed.verify_unless_made_here()


def test_reports_are_verified_too(plan_of):
    plan = plan_of()
    weak = with_noise(plan, "report_multipliers", plan.reports.multipliers * 0.5)
    with pytest.raises(VerificationError, match="8 clients would spend more"):
        weak.verify()


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("noise_multiplier", "is drawn and has a budget, but no noise"),
        ("report_multipliers", "reports without noise"),
    ],
)
def test_a_plan_without_noise_cannot_be_built(plan_of, column, words):
    plan = plan_of()
    part = plan.noise if column == "noise_multiplier" else plan.reports
    values = part.multipliers.copy()
    values[2] = 0.0
    with pytest.raises(InputError, match=f"client-2' {words}"):
        with_noise(plan, column, values)


def test_report_stds_are_those_of_a_mean(plan_of):
    plan = plan_of(loss_bound=4.0)
    assert plan.report_stds == pytest.approx(plan.reports.multipliers * 2.0 / 30)
    batch = plan_of("cpow-d", loss_bound=4.0)
    assert batch.report_stds == pytest.approx(batch.reports.multipliers * 2.0 / 10)


# what is open before the training
