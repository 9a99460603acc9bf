# SPDX-License-Identifier: Apache-2.0
"""Attack rates against closed forms, and against tests built on the outputs themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Event, History, attack_risk, charged_risk, promised_risk
from dpcohort.errors import InputError

RATES = (0.001, 0.01, 0.05, 0.4)


def _history(noise: float, rate: float, steps: int, **more: object) -> History:
    return History((Event.of(noise_multiplier=noise, sampling_rate=rate, steps=steps, **more),))


def _gaussian_hits(alpha: float, mu: float) -> float:
    return float(norm.cdf(norm.ppf(alpha) + mu))


def test_without_sampling_the_curve_is_the_gaussian_one():
    risk, mu = attack_risk(_history(8.0, 1.0, 20), delta=1e-5), math.sqrt(20) / 8
    for alpha in RATES:
        exact = _gaussian_hits(alpha, mu)
        assert exact <= risk.hits(alpha) <= exact + 1e-4
    assert mu <= risk.mu <= 1.002 * mu
    assert risk.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-6)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.3), (2.5, 0.1)])
def test_it_is_what_the_likelihood_ratio_test_reaches(noise, rate):
    """Two sampled steps on a fine lattice of outputs, the test that no other test beats."""
    x = np.linspace(-9, 9 + 1 / noise, 1201)
    base, moved = norm.pdf(x), norm.pdf(x - 1 / noise)
    used = (1 - rate) * base + rate * moved
    used, unused = used / used.sum(), base / base.sum()
    with_it, without = (np.outer(p, p).ravel() for p in (used, unused))
    order = np.argsort(-with_it / without)

    def best(p: np.ndarray, q: np.ndarray, order: np.ndarray, alpha: float) -> float:
        return float(np.interp(alpha, np.cumsum(q[order]), np.cumsum(p[order])))

    risk = attack_risk(_history(noise, rate, 2), delta=1e-7)
    for alpha in RATES:
        # Either data set may be the one with the record.
        found = max(
            best(with_it, without, order, alpha), best(without, with_it, order[::-1], alpha)
        )
        assert risk.hits(alpha) >= found - 1e-6
        # In the middle one curve stands for both directions, and is a little above either.
        assert risk.hits(alpha) <= found + (2e-4 if alpha < 0.1 else 5e-3)


def test_the_gaussian_curve_covers_and_is_close():
    risk = attack_risk(_history(2.0, 0.1, 50), delta=1e-5)
    for alpha in np.linspace(0, 1, 101)[1:-1]:
        covered = _gaussian_hits(float(alpha), risk.mu) + 1e-5
        assert risk.hits(float(alpha)) <= covered + 1e-9
        assert covered < risk.hits(float(alpha)) + 0.03


def test_several_records_of_one_person_add_up():
    risk, mu = attack_risk(_history(8.0, 1.0, 20), delta=1e-5), math.sqrt(20) / 8
    exact = _gaussian_hits(0.01, 3 * mu)
    assert exact <= risk.hits(0.01, records=3) <= exact + 2e-3


def test_bounds_of_the_promise_and_the_ends():
    history = _history(2.0, 0.1, 50)
    risk = attack_risk(history, delta=1e-5)
    promise = promised_risk(epsilon=history.epsilon(1e-5), delta=1e-5)
    for alpha in (0.0, *RATES, 1.0):
        assert alpha <= risk.hits(alpha) <= promise.hits(alpha) <= 1
    assert promise.hits(0.01) == pytest.approx(1e-5 + math.exp(promise.epsilons[0]) * 0.01)
    assert risk.advantage <= promise.advantage
    assert attack_risk(History(), delta=1e-5).hits(0.05) == 0.05
    assert attack_risk(_history(1e-3, 0.5, 10), delta=1e-5).hits(0.01) == 1.0


def test_noise_that_hides_a_record_all_but_wholly_is_still_covered():
    risk = attack_risk(_history(1e7, 1.0, 4), delta=1e-5)
    assert risk.epsilons == (0.0,)
    assert 2e-7 <= risk.mu < 2.1e-7
    assert 0.05 <= risk.hits(0.05) < 0.0500002


def test_a_promise_beyond_numbers_promises_nothing():
    assert promised_risk(epsilon=1e9, delta=1e-5).hits(0.001) == 1.0


def test_refusals():
    risk = promised_risk(epsilon=1.0, delta=1e-5)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="false_alarms"):
            risk.hits(wrong)
    with pytest.raises(InputError, match="records"):
        risk.hits(0.1, records=0)
    with pytest.raises(InputError, match="delta"):
        attack_risk(History(), delta=0.0)


def test_where_outputs_could_decide_the_caps_are_charged():
    """The history behind a letter is the one behind the receipt's epsilon."""
    from dpcohort.adaptive import make_adaptive_plan

    people = Population.from_arrays(sizes=[300] * 6, epsilon=[2.0] * 6, delta=1e-5)
    settings = Training(rounds=8, cohort_size=2, batch_size=30)
    plan = make_adaptive_plan(people, settings, rule="power-of-choice", rule_settings={"d": 4})
    charged = plan.charged_history(0, draws=1, reports=1)
    spent = plan.spent_epsilon(np.ones(6, np.int64), np.ones(6, np.int64), method="pld")
    assert charged.epsilon(1e-5) == pytest.approx(spent[0])
    assert charged.steps == int(plan.counts[0] + plan.reports.caps[0])
    assert plan.charged_history(0, draws=0) == History()
    fixed = make_plan(people, settings, seed=0)
    assert fixed.charged_history(0, draws=3).steps == 3


def test_what_was_charged_beside_the_training_raises_every_point_of_the_curve():
    training = attack_risk(_history(4.0, 1.0, 8), delta=1e-5)
    both = charged_risk(training, epsilon=0.5, delta=1e-6)
    assert charged_risk(promised_risk(epsilon=1.0, delta=1e-5), epsilon=0.5, delta=0.0) == (
        promised_risk(epsilon=1.5, delta=1e-5)
    )
    for alpha in (0.001, 0.01, 0.05, 0.3):
        # An attack sees likelihood ratios at most e^0.5 times as large, but for 1e-6 of the cases.
        most = training.hits(min(1.0, np.exp(0.5) * alpha)) + 1e-6
        assert training.hits(alpha) < both.hits(alpha) <= most * (1 + 1e-9)
    assert both.deltas[0] == training.deltas[0] + 1e-6
    assert both.mu is None
    assert both.advantage > training.advantage
