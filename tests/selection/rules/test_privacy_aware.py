# SPDX-License-Identifier: Apache-2.0
"""Rules that weigh noise: Problem 1, its relatives, and a cap on payments."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection import PrivacyAware, solve_selection


def test_is_problem_one_at_its_eta(private_problem):
    for eta, weight in ((None, 20.0), ("auto", 20.0), (0.3, 0.3), (0.0, 0.0)):
        chosen = PrivacyAware(eta=eta).select(private_problem)
        solution = solve_selection(private_problem.unbiased, weight * private_problem.noise_costs)
        assert np.array_equal(chosen.probabilities, solution.probabilities)
        assert (chosen.eta, chosen.objective, chosen.gap) == (
            weight,
            solution.objective,
            solution.gap,
        )


@pytest.mark.parametrize("linear", [False, True])
def test_bias_cap_chooses_eta(make_problem, linear):
    problem = make_problem(linear_costs=np.array([1.0, 0.5, 0.1, 0.0]) if linear else np.zeros(4))
    chosen = PrivacyAware(bias_cap=0.25).select(problem)
    assert chosen.bias == pytest.approx(0.25, abs=1e-13)
    assert chosen.gap < 1e-12 * (1 + chosen.objective)
    again = PrivacyAware(eta=chosen.eta).select(problem)
    assert again.probabilities == pytest.approx(chosen.probabilities, abs=1e-9)
    assert dict(chosen.settings) == {"bias_cap": 0.25}


def test_a_cap_that_does_not_bind_gives_the_least_noise(problem):
    chosen = PrivacyAware(bias_cap=2.0).select(problem)
    assert chosen.probabilities == pytest.approx([0, 0, 0, 1])
    assert chosen.eta == 20.0
    assert np.isfinite([chosen.objective, chosen.gap]).all()


def test_floor_and_cap_hold_for_eta_and_for_a_bias_cap(problem):
    free = PrivacyAware().select(problem)
    for rule in (PrivacyAware(floor=0.5, cap=0.6), PrivacyAware(bias_cap=0.3, floor=0.5, cap=0.6)):
        chosen = rule.select(problem)
        assert (chosen.probabilities >= 0.5 * problem.unbiased - 1e-16).all()
        assert chosen.probabilities.max() <= 0.6
        assert chosen.gap < 1e-12 * (1 + chosen.objective)
        assert chosen.settings["floor"] == 0.5
        assert chosen.settings["cap"] == 0.6
    assert PrivacyAware(floor=0.5, cap=0.6).select(problem).objective > free.objective


def test_bounds_that_nothing_meets_are_refused(problem):
    with pytest.raises(InputError, match="cap"):
        PrivacyAware(cap=0.2).select(problem)
    with pytest.raises(InputError, match="floor"):
        PrivacyAware(floor=1.0, cap=0.3).select(problem)
