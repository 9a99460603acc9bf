# SPDX-License-Identifier: Apache-2.0
"""Promises to persons: what is certified for them, beside an accountant that knows no persons."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpcohort import Contract, Population, Training, make_plan
from dpcohort.accounting import History, Segment, gaussian_delta, of_two_clients
from dpcohort.accounting._charges import charge_of, check_relation
from dpcohort.accounting._segments import check_contract
from dpcohort.data._persons import persons_of
from dpcohort.errors import InputError

DELTA = 1e-5


def independent(*steps):
    """Epsilon of Poisson-sampled Gaussian steps (z, rate, count), by dp-accounting."""
    total = None
    for z, rate, count in steps:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=rate, value_discretization_interval=1e-4
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    return lambda delta: total.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("cap", [1, 3, 40])
def test_persons_of_unequal_rows_are_certified_by_their_number_alone(cap):
    """Two clients, people with 1 to 40 rows, some with both; the cap changes no promise."""
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(600), rng.choice([1, 2, 5, 40], 600))
    wards = np.where(people % 7 == 0, rng.integers(0, 2, len(people)), people % 2)
    persons = persons_of(people, wards, most=cap)
    held = wards[persons.first]
    sizes = np.bincount(held).tolist()
    assert sum(sizes) > 600 > max(sizes)  # those with both are persons of both
    clients = Population.from_arrays(sizes=sizes, epsilon=[0.5, 3.0], delta=DELTA)
    settings = Training(rounds=20, cohort_size=2, batch_size=60, dimension=10)
    plan = make_plan(clients, settings, seed=0, accountant=Contract(unit="person"))
    steps = [
        (float(plan.noise_multipliers[k]), 60 / sizes[k], int(plan.counts[k])) for k in range(2)
    ]
    for k, epsilon in enumerate((0.5, 3.0)):
        theirs = independent(steps[k])(DELTA)
        assert theirs <= plan.certified_epsilon[k] * (1 + 1e-3) <= epsilon * (1 + 1e-3)
        assert plan.certified_epsilon[k] < theirs * 1.01
    # Somebody who is with both: what was done composes, and stays below both promises.
    both = of_two_clients((0.5, DELTA), (3.0, DELTA))
    done = History(
        tuple(e for k in range(2) for e in plan.charged_history(k, draws=steps[k][2]).events)
    )
    ours, theirs = done.epsilon(both[1]), independent(*steps)(both[1])
    assert theirs <= ours * (1 + 1e-3)
    assert ours < 1.01 * theirs
    assert ours < both[0] == 3.5


def test_two_promises_behind_one_noise_are_no_less_than_one_after_the_other():
    """Two shifts of one Gaussian add up in length, as no composition of two has them."""
    mu, epsilon = 0.8, 3.0
    delta = gaussian_delta(epsilon=epsilon, mu=mu)
    alone = (epsilon, delta)
    added, composed = of_two_clients(alone, alone, shared_noise=True), of_two_clients(alone, alone)
    assert added[0] == composed[0] == 2 * epsilon
    assert math.isclose(added[1], delta * (1 + math.exp(epsilon)))
    assert gaussian_delta(epsilon=added[0], mu=2 * mu) <= added[1]


def test_what_was_paid_for_records_has_no_total_with_what_is_promised_to_persons():
    people = Population.from_arrays(ids=["a"], sizes=[90], epsilon=[1.0], delta=DELTA)
    person, record = Contract(unit="person"), Contract()
    paid = charge_of(
        people, (), lambda e, d: (e / 2, 0.0), what="tuning", private=True, contract=record
    )
    with pytest.raises(InputError, match=r"differ in a record, and the training.*a person"):
        check_relation([paid], person)
    before = Segment(
        plan="0" * 64, ledger="0" * 64, rounds=3, spent={}, source="private", unit="record"
    )
    with pytest.raises(InputError, match="an earlier run protects a record"):
        check_contract([before], person, 2)
    assert Segment.from_dict(before.to_dict()).unit == "record"
