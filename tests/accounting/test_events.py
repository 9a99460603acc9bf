# SPDX-License-Identifier: Apache-2.0
"""Histories: composition, planning the rest, and refusals."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.accounting import (
    Event,
    History,
    affordable_steps,
    calibrate_remaining,
    certify_delta,
    certify_epsilon,
    gaussian_delta,
)
from dpcohort.errors import BudgetExceededError, InputError

POISSON = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=40)
OTHER = Event.of(noise_multiplier=3.0, sampling_rate=0.2, steps=60)
FIXED = Event.of(noise_multiplier=4.0, sampling_rate=0.1, steps=10, sampler="fixed")


def test_two_equal_events_are_one_of_twice_the_steps():
    history = History((POISSON, POISSON))
    case = {"noise_multiplier": 2.0, "sampling_rate": 0.1, "steps": 80}
    assert history.epsilon(1e-5) == certify_epsilon(method="pld", delta=1e-5, **case)
    assert history.delta(1.0) == certify_delta(method="pld", epsilon=1.0, **case)
    assert history.steps == 80


def test_mixed_spends_more_than_each_and_less_than_both_added():
    first, second = History((POISSON,)), History((OTHER,))
    both = first.append(OTHER)
    assert both.epsilon(1e-5) > max(first.epsilon(1e-5), second.epsilon(1e-5))
    assert both.epsilon(1e-5) < first.epsilon(5e-6) + second.epsilon(5e-6)
    assert first.events == (POISSON,)


def test_a_part_without_subsampling_joins_one_with():
    """A full-batch event as r = 1 (merged in closed form) and as r just below 1 (on the grid)."""
    full = Event.of(noise_multiplier=6.0, sampling_rate=1.0, steps=5)
    nearly = Event.of(noise_multiplier=6.0, sampling_rate=1 - 1e-9, steps=5)
    merged = History((POISSON, full)).epsilon(1e-5)
    assert merged == pytest.approx(History((POISSON, nearly)).epsilon(1e-5), rel=3e-4)


def test_empty_history_has_spent_nothing():
    assert History().epsilon(1e-5) == 0
    assert History().delta(0.0) == 0
    assert History().steps == 0


def test_fixed_and_poisson_compose_under_replace_one_only():
    mixed = History((POISSON, FIXED))
    with pytest.raises(InputError, match=r"promoted\(\)"):
        mixed.epsilon(1e-5)
    promoted = mixed.promoted()
    assert promoted.neighbours == "replace-one"
    assert promoted.epsilon(1e-5) > History((POISSON,)).promoted().epsilon(1e-5)
    assert History((POISSON,)).promoted().epsilon(1e-5) > History((POISSON,)).epsilon(1e-5)
    assert mixed.events[0].neighbours == "zero-out"


def test_json_round_trip():
    assert Event.from_dict(json.loads(json.dumps(POISSON.to_dict()))) == POISSON


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "mapping"),
        ({"noise_multiplier": 1.0}, "sampling_rate"),
        ({**POISSON.to_dict(), "stepz": 1}, "Did you mean 'steps'"),
        ({**POISSON.to_dict(), "steps": 1.5}, "whole number"),
    ],
)
def test_bad_files_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        Event.from_dict(values)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": "2"},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"steps": -1},
        {"sampler": "shuffle"},
        {"sampler": "fixed", "neighbours": "zero-out"},
    ],
)
def test_bad_events_are_refused(change):
    good = {"noise_multiplier": 2.0, "sampling_rate": 0.1, "steps": 4}
    with pytest.raises(InputError):
        Event.of(**{**good, **change})


def test_events_and_histories_are_frozen():
    with pytest.raises(FrozenInstanceError):
        POISSON.steps = 3
    with pytest.raises(FrozenInstanceError):
        History().events = (POISSON,)
    with pytest.raises(InputError):
        History(("not an event",))


class TestCalibrateRemaining:
    def test_fits_and_is_nearly_the_smallest(self):
        past = History((POISSON,))
        z = calibrate_remaining(past, epsilon=2.0, delta=1e-5, sampling_rate=0.2, steps=60)

        def total(noise):
            more = Event.of(noise_multiplier=noise, sampling_rate=0.2, steps=60)
            return past.append(more).delta(2.0)

        assert total(z) <= 1e-5
        assert total(z * (1 - 2e-4)) > 1e-5
        assert total(z / 2) > 1e-4

    def test_a_large_budget_needs_little_noise(self):
        case = {"sampling_rate": 1.0, "steps": 1}
        z = calibrate_remaining(History(), epsilon=200.0, delta=1e-5, **case)
        assert z < 0.1
        spent = History((Event.of(noise_multiplier=z, **case),)).epsilon(1e-5)
        assert spent == pytest.approx(200.0, rel=1e-3)

    def test_a_spent_budget_is_refused_with_what_was_spent(self):
        past = History((POISSON,))
        spent = past.epsilon(1e-5)
        with pytest.raises(BudgetExceededError, match=f"epsilon = {spent:.6g}.*0 steps still fit"):
            calibrate_remaining(past, epsilon=spent / 2, delta=1e-5, sampling_rate=0.1, steps=1)

    def test_an_overspent_budget_is_refused_without_a_step(self):
        past = History((POISSON,))
        with pytest.raises(BudgetExceededError, match="already spent"):
            calibrate_remaining(
                past, epsilon=past.epsilon(1e-5) / 2, delta=1e-5, sampling_rate=0.1, steps=0
            )

    def test_too_much_noise_is_refused_with_the_steps_that_fit(self):
        options = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1}
        fit = affordable_steps(History(), noise_multiplier=3.0, **options)
        with pytest.raises(BudgetExceededError, match=f"only {fit} steps still fit"):
            calibrate_remaining(History(), steps=fit + 5, largest_noise_multiplier=3.0, **options)

    def test_no_steps_need_no_noise(self):
        past = History((POISSON,))
        options = {"delta": 1e-5, "sampling_rate": 0.1, "steps": 0}
        assert calibrate_remaining(past, epsilon=5.0, **options) == 0
        with pytest.raises(BudgetExceededError):
            calibrate_remaining(past, epsilon=0.01, **options)

    def test_the_wrong_relation_is_refused(self):
        with pytest.raises(InputError, match="same in all events"):
            calibrate_remaining(
                History((POISSON,)),
                epsilon=2.0,
                delta=1e-5,
                sampling_rate=0.1,
                steps=3,
                sampler="fixed",
            )


OPTIONS = {"epsilon": 2.0, "delta": 1e-5, "noise_multiplier": 2.0, "sampling_rate": 0.1}


class TestAffordableSteps:
    def test_one_more_would_be_too_many(self):
        past = History((POISSON,))
        fit = affordable_steps(past, **OPTIONS)
        assert fit > 0

        def total(steps):
            more = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=steps)
            return past.append(more).delta(2.0)

        assert total(fit) <= 1e-5 < total(fit + 1)
        assert fit == affordable_steps(History(), **OPTIONS) - POISSON.steps

    def test_nothing_left(self):
        assert affordable_steps(History((POISSON,)), **{**OPTIONS, "epsilon": 0.1}) == 0

    def test_a_limit(self):
        assert affordable_steps(History(), at_most=7, **OPTIONS) == 7
        assert affordable_steps(History(), at_most=0, **OPTIONS) == 0


CONTRACTS = [("poisson", "zero-out"), ("poisson", "replace-one"), ("fixed", "replace-one")]


def library_epsilon(z, r, steps, delta, neighbours, *, spacing, lower=False, sensitivity=1.0):
    """dp-accounting's ε: an upper bound, or with ``lower`` a lower one."""
    relations = dp_accounting.NeighboringRelation
    return (
        privacy_loss_distribution.from_gaussian_mechanism(
            z,
            sensitivity=sensitivity,
            sampling_prob=r,
            value_discretization_interval=spacing,
            pessimistic_estimate=not lower,
            use_connect_dots=not lower,
            neighboring_relation=(
                relations.REPLACE_SPECIAL if neighbours == "zero-out" else relations.REPLACE_ONE
            ),
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
    )


def random_tuples(count, seed):
    rng = np.random.default_rng(seed)
    return [
        (
            math.exp(rng.uniform(math.log(0.6), math.log(12))),
            math.exp(rng.uniform(math.log(0.02), math.log(0.9))),
            int(math.exp(rng.uniform(0, math.log(300)))),
            10 ** rng.uniform(-7, -2),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("z", "r", "steps", "delta"), random_tuples(6, seed=1))
def test_between_the_two_bounds_of_dp_accounting(neighbours, z, r, steps, delta):
    ours = certify_epsilon(
        method="pld",
        delta=delta,
        noise_multiplier=z,
        sampling_rate=r,
        steps=steps,
        neighbours=neighbours,
    )
    spacing = max(1e-3 * ours / math.sqrt(steps), 1e-4)
    upper = library_epsilon(z, r, steps, delta, neighbours, spacing=spacing)
    lower = library_epsilon(z, r, steps, delta, neighbours, spacing=spacing, lower=True)
    assert lower <= ours <= upper * (1 + 5e-4)


@pytest.mark.parametrize(("z", "r", "steps", "delta"), random_tuples(4, seed=2))
def test_fixed_batches_spend_at_least_what_a_real_pair_of_data_sets_does(z, r, steps, delta):
    """All other records at -C·u, one at +C·u or -C·u: a subsampled Gaussian of sensitivity 2C."""
    ours = certify_epsilon(
        method="pld", delta=delta, noise_multiplier=z, sampling_rate=r, steps=steps, sampler="fixed"
    )
    spacing = max(1e-3 * ours / math.sqrt(steps), 1e-4)
    attained = library_epsilon(
        z, r, steps, delta, "zero-out", spacing=spacing, lower=True, sensitivity=2.0
    )
    assert attained <= ours


@pytest.mark.parametrize(("z", "r", "steps", "delta"), random_tuples(4, seed=2))
def test_fixed_batches_agree_with_the_profile_composed_by_dp_accounting(z, r, steps, delta):
    """The subsampled profile for ε ≥ 0, mirrored for ε < 0, on the library's grid."""
    ours = certify_epsilon(
        method="pld", delta=delta, noise_multiplier=z, sampling_rate=r, steps=steps, sampler="fixed"
    )
    spacing = max(1e-3 * ours / math.sqrt(steps), 1e-4)
    top = math.log1p(r * math.expm1(2 / z * (2 / z + 8.5)))
    losses = np.arange(0, math.ceil(top / spacing) + 1)
    positive = losses * spacing
    profile = r * gaussian_delta(epsilon=np.log1p(np.expm1(positive) / r), mu=2 / z)
    mirrored = -np.expm1(-positive[1:]) + np.exp(-positive[1:]) * profile[1:]
    composed = pld_pmf.create_pmf_pessimistic_connect_dots(
        spacing, np.concatenate([-losses[:0:-1], losses]), np.concatenate([mirrored[::-1], profile])
    ).self_compose(steps)
    assert ours == pytest.approx(composed.get_epsilon_for_delta(delta), rel=5e-4)


@pytest.mark.parametrize(("sampler", "neighbours"), CONTRACTS)
def test_without_subsampling_it_is_the_gaussian_mechanism(sampler, neighbours):
    sensitivity = 1.0 if neighbours == "zero-out" else 2.0
    z, steps, delta = np.array([0.5, 3.0, 40.0]), np.array([1, 50, 1000]), 1e-6
    epsilon = certify_epsilon(
        method="pld",
        delta=delta,
        noise_multiplier=z,
        sampling_rate=1.0,
        steps=steps,
        sampler=sampler,
        neighbours=neighbours,
    )
    mu = sensitivity * np.sqrt(steps) / z
    assert (gaussian_delta(epsilon=epsilon, mu=mu) <= delta).all()
    assert (gaussian_delta(epsilon=epsilon * (1 - 1e-7), mu=mu) > delta).all()


def test_one_step_in_closed_form():
    """Poisson, zero-out, T = 1: δ(ε) = r δ_Gauss(ln(1 + (e^ε - 1)/r))."""
    epsilon, z, r = np.array([0.01, 1.0, 8.0, 12.0]), 0.8, 0.2
    amplified = np.log1p(np.expm1(epsilon) / r)
    truth = r * gaussian_delta(epsilon=amplified, mu=1 / z)
    ours = certify_delta(
        method="pld", epsilon=epsilon, noise_multiplier=z, sampling_rate=r, steps=1
    )
    assert (ours >= truth * (1 - 1e-9)).all()
    assert (ours <= truth * 1.02).all()


@settings(max_examples=25, deadline=None)
@given(
    z=st.floats(0.4, 50),
    r=st.floats(1e-3, 0.95),
    steps=st.integers(1, 2000),
    log_delta=st.floats(-20, -4),
    contract=st.sampled_from(CONTRACTS),
)
def test_more_of_anything_harmful_spends_more(z, r, steps, log_delta, contract):
    def epsilon(**change):
        case = {"z": z, "r": r, "steps": steps, "delta": math.exp(log_delta), **change}
        return certify_epsilon(
            method="pld",
            delta=case["delta"],
            noise_multiplier=case["z"],
            sampling_rate=case["r"],
            steps=case["steps"],
            sampler=contract[0],
            neighbours=contract[1],
        )

    usual = epsilon()
    slack = 1 + 1e-3  # two pessimistic answers may differ by their grids
    assert epsilon(z=z * 1.05) <= usual * slack
    assert epsilon(r=min(1.0, r * 1.05)) * slack >= usual
    assert epsilon(steps=steps + 1 + steps // 10) * slack >= usual
    assert epsilon(delta=math.exp(log_delta + 0.1)) <= usual * slack


@settings(max_examples=30, deadline=None)
@given(
    log_z=st.floats(math.log(0.2), math.log(1e6)),
    log_r=st.floats(math.log(1e-6), 0),
    log_steps=st.floats(0, math.log(1e5)),
    log_delta=st.floats(math.log(1e-12), math.log(0.1)),
    contract=st.sampled_from(CONTRACTS),
)
def test_there_is_an_answer_everywhere(log_z, log_r, log_steps, log_delta, contract):
    case = {
        "noise_multiplier": math.exp(log_z),
        "sampling_rate": min(math.exp(log_r), 1.0),
        "steps": int(math.exp(log_steps)),
        "sampler": contract[0],
        "neighbours": contract[1],
    }
    delta = math.exp(log_delta)
    epsilon = certify_epsilon(method="pld", delta=delta, **case)
    assert 0 <= epsilon < math.inf
    unamplified = certify_epsilon(method="pld", delta=delta, **{**case, "sampling_rate": 1.0})
    assert epsilon <= unamplified * 1.001 + 1e-12
    # Back again: twice pessimistic, so at least nearly the same δ unless ε was cut off at 0.
    back = certify_delta(method="pld", epsilon=epsilon * 1.01, **case)
    assert 0 < back <= 1


def test_the_ends_of_the_scale():
    def epsilon(z, steps):
        return certify_epsilon(
            method="pld", delta=1e-5, noise_multiplier=z, sampling_rate=0.1, steps=steps
        )

    def delta(z, steps, eps=1.0):
        return certify_delta(
            method="pld", epsilon=eps, noise_multiplier=z, sampling_rate=0.1, steps=steps
        )

    assert epsilon(1.0, 0) == 0
    assert epsilon(0.0, 0) == 0
    assert epsilon(math.inf, 10) == 0
    assert epsilon(0.0, 1) == math.inf
    assert epsilon(1e-200, 1) == math.inf
    assert 5e5 < epsilon(1e-3, 1) < 6e5
    assert 5e2 < epsilon(3e-2, 1) < 8e2
    assert delta(1.0, 0) == 0
    assert delta(0.0, 3) == 1
    assert delta(math.inf, 3) == 0
    assert delta(1.0, 3, eps=math.inf) == 0
    # 10 steps that are each (0, δ₁)-DP with δ₁ = r · P(|N(0,1)| < 1/(2z)).
    plain = 10 * 1e-6 * math.erf(1 / math.sqrt(2))
    rare = {"noise_multiplier": 0.5, "sampling_rate": 1e-6, "steps": 10}
    assert certify_epsilon(method="pld", delta=plain, **rare) == 0
    assert 0.9 * plain < certify_delta(method="pld", epsilon=0.0, **rare) <= plain * (1 + 1e-12)


def test_delta_far_below_what_a_plain_transform_could_see():
    delta = certify_delta(
        method="pld", epsilon=30.0, noise_multiplier=2.0, sampling_rate=0.3, steps=60
    )
    assert 1e-80 < delta < 1e-40
    epsilon = certify_epsilon(
        method="pld", delta=delta, noise_multiplier=2.0, sampling_rate=0.3, steps=60
    )
    assert epsilon == pytest.approx(30.0, rel=1e-3)
