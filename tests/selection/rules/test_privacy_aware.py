# SPDX-License-Identifier: Apache-2.0
"""Rules that weigh noise: Problem 1, its relatives, and a cap on payments."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from dpcohort.errors import InputError
from dpcohort.selection import solve_selection
from dpcohort.selection.rules import InverseNoise, ParticipationCounts, PaymentCap, PrivacyAware


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


def test_linear_costs_are_part_of_the_problem(make_problem):
    problem = make_problem(linear_costs=np.array([400.0, 1.0, 0.1, 0.0]))
    chosen = PrivacyAware(eta=1.0).select(problem)
    assert chosen.probabilities[0] == 0.0
    assert chosen.gap < 1e-12


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


def test_probabilities_are_inverse_to_the_noise(private_problem):
    chosen = InverseNoise().select(private_problem)
    inverse = 1 / private_problem.noise_costs
    assert chosen.probabilities == pytest.approx(inverse / inverse.sum())
    limit = PrivacyAware(eta=1e12).select(private_problem).probabilities
    assert chosen.probabilities == pytest.approx(limit, rel=1e-5)


def test_public_clients_take_everything_by_size(make_problem):
    problem = make_problem(
        epsilon=np.array([0.5, 1.0, np.nan, np.nan]),
        public=np.array([False, False, True, True]),
        noise_costs=np.array([40.0, 10.0, 0.0, 0.0]),
    )
    assert InverseNoise().select(problem).probabilities == pytest.approx([0, 0, 3 / 7, 4 / 7])


def test_linear_costs_can_exclude(make_problem):
    problem = make_problem(
        epsilon=np.ones(4),
        public=np.zeros(4, dtype=bool),
        noise_costs=np.ones(4),
        linear_costs=np.array([0.0, 0.0, 0.0, 100.0]),
    )
    assert InverseNoise().select(problem).probabilities == pytest.approx([1 / 3] * 3 + [0])


PRICES = (8.0, 4.0, 2.0, 1.0)


def paid(rule, problem):
    return float(np.array(PRICES) @ rule.select(problem).probabilities)


@pytest.mark.parametrize("spend", [1.0, 0.8, 0.6, 0.4])
def test_the_cap_is_kept_and_used(private_problem, spend):
    rule = PaymentCap(spend=spend, prices=PRICES)
    cap = spend * float(np.array(PRICES) @ private_problem.unbiased)
    free = PrivacyAware().select(private_problem)
    if float(np.array(PRICES) @ free.probabilities) <= cap:
        assert np.array_equal(rule.select(private_problem).probabilities, free.probabilities)
    else:
        assert paid(rule, private_problem) == pytest.approx(cap, rel=1e-6)
        assert paid(rule, private_problem) <= cap


def test_less_money_excludes_the_dear_ones(private_problem):
    found = PaymentCap(spend=0.45, prices=PRICES).select(private_problem).probabilities
    assert found[0] == 0.0
    assert found[3] > private_problem.unbiased[3]


def test_the_default_price_is_one_over_epsilon_and_public_data_are_free(problem):
    found = PaymentCap(spend=0.05).select(problem).probabilities
    price = np.array([1 / 0.5, 1 / 1.0, 1 / 4.0, 0.0])
    assert price @ found <= 0.05 * (price @ problem.unbiased) * (1 + 1e-9)
    assert found[3] > 0.9


@pytest.mark.parametrize("rounding", [1e-12, -5e-13])
def test_only_the_cheapest_can_meet_the_smallest_cap(private_problem, rounding):
    least = 1.0 / float(np.array(PRICES) @ private_problem.unbiased)
    found = PaymentCap(spend=least * (1 + rounding), prices=PRICES).select(private_problem)
    assert found.probabilities == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=1e-9)


def test_where_nobody_asks_a_price_nothing_is_excluded(private_problem):
    found = PaymentCap(prices=(0.0,) * 4).select(private_problem).probabilities
    assert np.array_equal(found, private_problem.unbiased)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"spend": 0.0}, "spend = 0"),
        ({"spend": 1.5}, "spend = 1.5"),
        ({"prices": (1.0, -1.0)}, r"prices\[1\]"),
        ({"prices": (1.0, 1.0)}, "shape of prices"),
        ({"spend": 0.1, "prices": PRICES}, r"at least 0\.385.* cheapest client"),
    ],
)
def test_what_cannot_be(private_problem, settings, words):
    with pytest.raises(InputError, match=words):
        PaymentCap(**settings).select(private_problem)


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


def test_counts_where_one_client_takes_all(make_problem):
    """The level at which it does is found by adding; no sum that rounds down may hide it."""
    dice = np.random.default_rng(0)
    for _ in range(60):
        unbiased = dice.dirichlet(np.ones(4))
        problem = make_problem(
            unbiased=unbiased, noise_costs=np.zeros(4), linear_costs=np.array([1.0, 0.0, 1.0, 1.0])
        )
        chosen = ParticipationCounts(eta=1e4).select(problem)
        assert chosen.probabilities == pytest.approx([0, 1, 0, 0], abs=1e-12)


def test_equal_prices_can_all_be_paid(make_problem):
    """Spending everything asks nobody to leave, though a weighted sum of prices rounds down."""
    dice = np.random.default_rng(0)
    for _ in range(60):
        problem = make_problem(
            unbiased=dice.dirichlet(np.ones(4)), epsilon=np.full(4, 0.7), public=np.zeros(4, bool)
        )
        chosen = PaymentCap(spend=1.0).select(problem)
        assert chosen.probabilities.sum() == pytest.approx(1.0)
