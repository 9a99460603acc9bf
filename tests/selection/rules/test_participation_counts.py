# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from dpcohort.errors import InputError
from dpcohort.selection.rules import ParticipationCounts

LINEAR = np.array([3.0, 0.5, 0.1, 0.0])


def objective(p, problem, rule, eta=20.0):
    noise, linear = eta * problem.noise_costs, eta * problem.linear_costs
    bias = rule.heterogeneity * ((p - problem.unbiased) ** 2 / problem.unbiased).sum()
    return bias + (noise * p * p).sum() + (linear * p).sum()


def test_a_hand_computed_case(make_problem):
    # u = 1/2 each, a = 3 and 0: minimise 2 (p - 1/2)^2 * 2 + 3 p^2 in p, so p = 4 / 14 = 2 / 7.
    problem = make_problem(
        unbiased=np.array([0.5, 0.5]), epsilon=np.array([1.0, 8.0]),
        public=np.zeros(2, dtype=bool), noise_costs=np.array([0.3, 0.0]), linear_costs=np.zeros(2),
    )  # fmt: skip
    chosen = ParticipationCounts(eta=10.0).select(problem)
    assert chosen.probabilities == pytest.approx([2 / 7, 5 / 7], abs=1e-12)


@pytest.mark.parametrize("linear", [np.zeros(4), LINEAR], ids=["quadratic", "linear too"])
@pytest.mark.parametrize("heterogeneity", [0.1, 1.0, 30.0])
def test_it_is_the_minimum(make_problem, linear, heterogeneity):
    problem = make_problem(linear_costs=linear)
    rule = ParticipationCounts(heterogeneity=heterogeneity)
    found = rule.select(problem).probabilities
    # An independent solver that knows nothing of the closed form.
    other = minimize(
        objective, problem.unbiased, args=(problem, rule), method="SLSQP",
        bounds=[(0, 1)] * 4, constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    assert found == pytest.approx(other.x, abs=1e-5)
    assert objective(found, problem, rule) <= other.fun + 1e-9


def test_linear_costs_leave_clients_out(make_problem):
    found = ParticipationCounts(heterogeneity=0.01).select(make_problem(linear_costs=LINEAR))
    assert found.probabilities[0] == 0.0
    assert found.probabilities[3] > 0.9


def test_much_heterogeneity_is_unbiased_selection(problem):
    found = ParticipationCounts(heterogeneity=1e9).select(problem)
    assert found.probabilities == pytest.approx(problem.unbiased, abs=1e-6)


def test_a_client_of_infinite_noise_is_left_out(make_problem):
    found = ParticipationCounts().select(make_problem(noise_costs=np.array([np.inf, 1.0, 1.0, 0])))
    assert found.probabilities[0] == 0.0
    assert found.probabilities.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("settings", [{"heterogeneity": 0}, {"eta": -1.0}, {"eta": "much"}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        ParticipationCounts(**settings)
