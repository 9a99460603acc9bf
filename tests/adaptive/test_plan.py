# SPDX-License-Identifier: Apache-2.0
"""Adaptive plans: frozen, hashed, verified, and refused with clear words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.adaptive.rules import PowerOfChoice
from dpcohort.adaptive.capped_noise import CappedNoise
from dpcohort.errors import InputError, VerificationError


def test_the_hash_covers_what_matters(plan_of):
    plans = [
        plan_of(),
        plan_of(seed=6),
        plan_of(report_share=0.2),
        plan_of(rule_settings={"d": 4}),
        plan_of(participation_cap=4),
        plan_of("rpow-d"),
        plan_of(reports="raw"),
        plan_of(loss_bound=4.0),
    ]
    assert len({plan.sha256 for plan in plans}) == len(plans)
    assert plan_of() == plan_of()


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


def test_spending_grows_with_draws_and_reports_to_the_certificate(plan_of, people):
    plan = plan_of()
    none = np.zeros(8, dtype=np.int64)
    assert (plan.spent_epsilon(none, none) == 0).all()
    some = plan.spent_epsilon(none + 1, none)
    more = plan.spent_epsilon(none + 1, none + 2)
    assert (some > 0).all()
    assert (some < more).all()
    full = plan.spent_epsilon(plan.schedule.counts, plan.report_caps)
    assert full == pytest.approx(plan.certified_epsilon)
    beyond = plan.spent_epsilon(plan.schedule.counts, plan.report_caps + 3)
    assert (beyond > people.epsilon).all()


@pytest.mark.parametrize("rule", ["power-of-choice", "rpow-d", "clustered"])
def test_numbers_that_outputs_chose_are_certified_at_the_caps(plan_of, rule):
    """A rule could stop at the output that tells most: a client's own count proves nothing."""
    plan = plan_of(rule)
    once = np.array([1, 0, 0, 0, 0, 0, 0, 0])
    asked = np.minimum(np.roll(once, 1), plan.report_caps)
    draws, reports = plan.counts_to_certify(once, asked)
    heard = once + asked > 0  # who was only asked is heard too
    assert np.array_equal(draws, np.where(heard, plan.schedule.counts, 0))
    assert np.array_equal(reports, np.where(heard, plan.report_caps, 0))
    beyond, _ = plan.counts_to_certify(plan.schedule.counts + 1, 0 * once)
    assert (beyond == plan.schedule.counts + 1).all()  # what is beyond a cap is not hidden


def test_a_plan_with_too_little_noise_does_not_verify(plan_of):
    plan = plan_of()
    weak = CappedNoise(
        noise_multiplier=plan.noise_multipliers * 0.9,
        report_multiplier=plan.report_multipliers.copy(),
        certified_epsilon=plan.certified_epsilon.copy(),
        lifted=plan.noise.lifted.copy(),
    )
    changed = replace(plan, noise=weak)
    with pytest.raises(VerificationError, match="8 clients would spend more"):
        changed.verify_unless_made_here()


def test_reports_are_verified_too(plan_of):
    plan = plan_of()
    weak = replace(plan.noise, report_multiplier=plan.report_multipliers * 0.5)
    with pytest.raises(VerificationError, match="8 clients would spend more"):
        replace(plan, noise=weak).verify()


@pytest.mark.parametrize("column", ["noise_multiplier", "report_multiplier"])
def test_a_plan_without_noise_cannot_be_built(plan_of, column):
    plan = plan_of()
    columns = {
        name: getattr(plan.noise, name).copy()
        for name in ("noise_multiplier", "report_multiplier", "certified_epsilon", "lifted")
    }
    columns[column][2] = 0.0
    with pytest.raises(InputError, match="client-2"):
        replace(plan, noise=CappedNoise(**columns))


def test_report_stds_are_those_of_a_mean(plan_of):
    plan = plan_of(loss_bound=4.0)
    assert plan.report_stds == pytest.approx(plan.report_multipliers * 2.0 / 30)
    batch = plan_of("cpow-d", loss_bound=4.0)
    assert batch.report_stds == pytest.approx(batch.report_multipliers * 2.0 / 10)
