# SPDX-License-Identifier: Apache-2.0
"""Histories: composition, planning the rest, and refusals."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import FrozenInstanceError

import pytest

from dpcohort.accounting.certify import certify_delta, certify_epsilon
from dpcohort.accounting.events import Event, History, affordable_steps, calibrate_remaining
from dpcohort.accounting.gaussian import gaussian_delta
from dpcohort.errors import BudgetExceededError, InputError

POISSON = Event(noise_multiplier=2.0, sampling_rate=0.1, steps=40)
OTHER = Event(noise_multiplier=3.0, sampling_rate=0.2, steps=60)
FIXED = Event(noise_multiplier=4.0, sampling_rate=0.1, steps=10, sampler="fixed")


def test_two_equal_events_are_one_of_twice_the_steps():
    history = History((POISSON, POISSON))
    case = {"noise_multiplier": 2.0, "sampling_rate": 0.1, "steps": 80}
    assert history.epsilon(1e-5) == certify_epsilon(method="pld", delta=1e-5, **case)
    assert history.delta(1.0) == certify_delta(method="pld", epsilon=1.0, **case)
    assert history.steps == 80


def test_order_does_not_matter():
    events = (POISSON, OTHER, Event(noise_multiplier=5.0, sampling_rate=1.0, steps=2))
    spent = {History(order).epsilon(1e-5) for order in itertools.permutations(events)}
    assert len(spent) == 1


def test_mixed_spends_more_than_each_and_less_than_both_added():
    first, second = History((POISSON,)), History((OTHER,))
    both = first.append(OTHER)
    assert both.epsilon(1e-5) > max(first.epsilon(1e-5), second.epsilon(1e-5))
    assert both.epsilon(1e-5) < first.epsilon(5e-6) + second.epsilon(5e-6)
    assert first.events == (POISSON,)


def test_mixed_without_subsampling_is_gaussian():
    history = History(
        (
            Event(noise_multiplier=10.0, sampling_rate=1.0, steps=9),
            Event(noise_multiplier=5.0, sampling_rate=1.0, steps=4),
        )
    )
    assert history.delta(1.0) == gaussian_delta(epsilon=1.0, mu=math.sqrt(9 / 100 + 4 / 25))


def test_a_part_without_subsampling_joins_one_with():
    """A full-batch event as r = 1 (merged in closed form) and as r just below 1 (on the grid)."""
    full = Event(noise_multiplier=6.0, sampling_rate=1.0, steps=5)
    nearly = Event(noise_multiplier=6.0, sampling_rate=1 - 1e-9, steps=5)
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
        Event(**{**good, **change})


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
            more = Event(noise_multiplier=noise, sampling_rate=0.2, steps=60)
            return past.append(more).delta(2.0)

        assert total(z) <= 1e-5
        assert total(z * (1 - 2e-4)) > 1e-5
        assert total(z / 2) > 1e-4

    def test_from_scratch_it_is_the_ordinary_calibration(self):
        z = calibrate_remaining(History(), epsilon=1.0, delta=1e-5, sampling_rate=0.2, steps=100)
        case = {"sampling_rate": 0.2, "steps": 100}
        assert certify_epsilon(method="pld", delta=1e-5, noise_multiplier=z, **case) <= 1.0 * (
            1 + 1e-5
        )
        assert certify_epsilon(method="pld", delta=1e-5, noise_multiplier=z * 0.999, **case) > 1.0

    def test_a_client_that_dropped_out_needs_less_noise(self):
        planned = calibrate_remaining(
            History(), epsilon=1.0, delta=1e-5, sampling_rate=0.1, steps=100
        )
        done = History((Event(noise_multiplier=planned, sampling_rate=0.1, steps=30),))
        rest = calibrate_remaining(done, epsilon=1.0, delta=1e-5, sampling_rate=0.1, steps=40)
        assert rest < 0.9 * planned

    def test_fixed_batches(self):
        past = History((FIXED,))
        z = calibrate_remaining(
            past, epsilon=3.0, delta=1e-5, sampling_rate=0.1, steps=20, sampler="fixed"
        )
        more = Event(noise_multiplier=z, sampling_rate=0.1, steps=20, sampler="fixed")
        assert past.append(more).delta(3.0) <= 1e-5

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
            more = Event(noise_multiplier=2.0, sampling_rate=0.1, steps=steps)
            return past.append(more).delta(2.0)

        assert total(fit) <= 1e-5 < total(fit + 1)
        assert fit == affordable_steps(History(), **OPTIONS) - POISSON.steps

    def test_nothing_left(self):
        assert affordable_steps(History((POISSON,)), **{**OPTIONS, "epsilon": 0.1}) == 0

    def test_a_limit(self):
        assert affordable_steps(History(), at_most=7, **OPTIONS) == 7
        assert affordable_steps(History(), at_most=0, **OPTIONS) == 0
