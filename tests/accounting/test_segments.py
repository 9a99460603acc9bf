# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Contract, Population, Training, make_plan
from dpcohort.accounting import (
    Event,
    History,
    Segment,
    calibrate_remaining,
    deploy_noise,
    paper_noise_multiplier,
)
from dpcohort.accounting._deployed_noise import noise_after
from dpcohort.accounting._segments import exhausted_clients, left_epsilon, left_population
from dpcohort.errors import BudgetExceededError, InputError

TRAINING = Training(rounds=6, cohort_size=2, sampling_rate=1.0)


def spent(epsilon: float, steps: int = 10, **more: object) -> History:
    """A history of so much at delta 1e-5."""
    settings = {"sampling_rate": 1.0, "steps": steps, **more}
    z = calibrate_remaining(History(), epsilon=epsilon, delta=1e-5, **settings)
    return History((Event.of(noise_multiplier=z, **settings),))


def segment(**histories: History) -> Segment:
    return Segment(plan="", ledger="", rounds=3, source="private", spent=histories)


def people(*epsilon: float) -> Population:
    names = "abcdefgh"[: len(epsilon)]
    return Population.from_arrays(ids=list(names), sizes=[90] * len(epsilon), epsilon=epsilon,
                                  delta=1e-5)  # fmt: skip


def test_budgets_add_up_like_squares():
    assert left_epsilon(History(), epsilon=2.0, delta=1e-5) == pytest.approx(2.0)
    assert round(left_epsilon(spent(0.99), epsilon=2.0, delta=1e-5), 2) == 1.67  # in the how-to
    assert left_epsilon(spent(2.5), epsilon=2.0, delta=1e-5) == 0.0
    left = left_epsilon(spent(1.5), epsilon=2.0, delta=1e-5)
    rest = spent(left).events[0]
    total = spent(1.5).append(rest).epsilon(1e-5)  # Gaussian steps: no approximation
    assert total == pytest.approx(2.0, rel=1e-4)


def test_who_has_nothing_left_is_named_and_who_has_is_not():
    before = [segment(**{name: spent(1.0) for name in "abcdefg"})]
    clients = people(1.0, 0.5, 1.0005, 0.9, 0.9, 0.9, 2.0)
    found = exhausted_clients(clients, before)
    assert list(found) == list("abcdef")
    assert "has spent 1: 0.5 too much" in found["b"]
    assert "all but nothing left" in found["c"]
    with pytest.raises(BudgetExceededError, match=r"6 clients .*\n  a: .*\n(.*\n)*.* and 1 more"):
        left_population(clients, before)
    assert left_population(people(3.0), before).epsilon[0] < 3.0


def test_who_took_part_without_noise_has_nothing_to_promise():
    bare = replace(segment(), without_noise=("a",))
    assert "took part as a public client" in exhausted_clients(people(3.0), [bare])["a"]


def test_own_shares_alone_are_quieter_and_who_counts_on_nobody_has_no_others():
    first = replace(segment(a=spent(1.0)), honest=4)
    assert first.if_alone().spent["a"].epsilon(1e-5) > first.spent["a"].epsilon(1e-5)
    assert first.if_alone().if_alone() == first.if_alone()
    assert Segment.from_dict(json.loads(json.dumps(first.to_dict()))) == first


def test_a_client_that_was_not_there_has_all_of_its_budget():
    clients = people(3.0, 2.0)
    assert left_population(clients, [segment(a=spent(1.0))]).epsilon[1] == 2.0


def test_a_history_under_another_relation_is_refused():
    history = spent(1.0, neighbours="replace-one")
    with pytest.raises(InputError, match="no common total"):
        make_plan(people(4.0), TRAINING, before=[segment(a=history)], seed=0)


def test_a_client_that_is_not_drawn_again_has_still_spent():
    past = [spent(1.0), History()]
    noise, certified, _ = deploy_noise(
        people(2.0, 2.0),
        calibrated_epsilon=np.array([1.6, 2.0]),
        sampling_rates=np.ones(2),
        steps=np.array([0, 5]),
        contract=Contract(),
        past=past,
    )
    assert certified[0] == past[0].epsilon(1e-5)
    assert np.isnan(noise[0])
    assert certified[1] <= 2.0


def test_a_rule_that_asks_for_more_noise_gets_it():
    clients, before = people(2.0, 4.0), [segment(a=spent(1.0), b=spent(1.0))]
    strict = make_plan(clients, TRAINING, selection="minimum-epsilon", before=before, seed=0)
    plain = make_plan(clients, TRAINING, selection="unbiased", before=before, seed=0)
    assert strict.certified_epsilon[1] < 3.5
    assert plain.certified_epsilon[1] == pytest.approx(4.0, rel=1e-3)
    assert (strict.certified_epsilon <= clients.epsilon).all()


def test_clients_alike_have_the_same_noise_and_the_papers_stays_where_it_is_enough():
    clients, before = people(1.0, 1.0), [spent(0.05, neighbours="replace-one")] * 2
    noise, certified, lifted = deploy_noise(
        clients,
        calibrated_epsilon=np.array([0.5, 0.5]),
        sampling_rates=np.full(2, 0.2),
        steps=np.array([20, 20]),
        contract=Contract.of("paper"),
        past=before,
    )
    paper = paper_noise_multiplier(epsilon=0.5, delta=1e-5, sampling_rate=0.2, steps=20)
    assert noise.tolist() == [paper, paper]
    assert certified[0] == certified[1] < 1.0
    assert not lifted.any()


def test_after_more_than_was_promised_no_noise_is_enough():
    to_come = Event.of(noise_multiplier=5.0, sampling_rate=1.0, steps=10)
    with pytest.raises(BudgetExceededError, match=r"'north': .* 0 steps still fit"):
        noise_after("north", spent(2.0), to_come, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("guard", ["refuse", "lift"])
def test_the_papers_noise_is_certified_with_what_was_spent(guard):
    training = Training(rounds=1, cohort_size=1, sampling_rate=0.2)
    clients, before = people(12.0), [segment(a=spent(0.1, neighbours="replace-one"))]
    options = {"accountant": "paper", "guard": guard, "before": before, "seed": 0}
    if guard == "refuse":
        with pytest.raises(BudgetExceededError, match="together with what it spent before"):
            make_plan(clients, training, **options)
        return
    plan = make_plan(clients, training, **options)
    assert plan.noise.lifted.all()
    assert plan.certified_epsilon[0] <= 12.0
