# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.errors import InputError
from dpcohort.schedule import Schedule, draw_schedule


def _draw(p, rounds, cohort_size, draws="systematic", seed=0):
    return draw_schedule(
        np.asarray(p, dtype=float),
        rounds=rounds,
        cohort_size=cohort_size,
        draws=draws,
        rng=np.random.default_rng(seed),
    )


@given(
    st.lists(st.floats(1e-6, 1), min_size=1, max_size=30),
    st.integers(1, 30),
    st.integers(1, 12),
    st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_systematic_counts_are_floor_or_ceiling_of_their_mean(weights, rounds, cohort, seed):
    p = np.array(weights) / np.sum(weights)
    counts = _draw(p, rounds, cohort, seed=seed).counts
    mean = p * rounds * cohort
    assert counts.sum() == rounds * cohort
    assert (counts >= np.floor(mean - 1e-9)).all()
    assert (counts <= np.ceil(mean + 1e-9)).all()


@pytest.mark.parametrize("draws", ["systematic", "independent"])
def test_each_slot_has_the_marginal_asked_for(draws):
    p = np.array([0.5, 0.3, 0.15, 0.05])
    runs, rounds, cohort = 4000, 3, 2
    hits = np.zeros((rounds, cohort, p.size))
    for seed in range(runs):
        cohorts = _draw(p, rounds, cohort, draws, seed).cohorts
        for k in range(p.size):
            hits[..., k] += cohorts == k
    standard_error = np.sqrt(p * (1 - p) / runs)
    assert (np.abs(hits / runs - p) < 5.5 * standard_error).all()


def test_systematic_never_draws_a_client_twice_in_a_round_when_it_need_not():
    p = np.array([0.1] * 10)
    schedule = _draw(p, rounds=20, cohort_size=8)
    assert all(len(set(row)) == 8 for row in schedule.cohorts.tolist())


@pytest.mark.parametrize("draws", ["systematic", "independent"])
def test_a_client_of_probability_zero_is_never_drawn(draws):
    p = np.array([0.0, 0.7, 0.0, 0.3, 0.0])
    counts = sum(_draw(p, 50, 10, draws, seed).counts for seed in range(20))
    assert counts[[0, 2, 4]].sum() == 0


def test_counts_are_of_draws_not_of_rounds():
    schedule = Schedule(cohorts=np.array([[0, 0, 2], [2, 0, 0]]), clients=4)
    assert schedule.counts.tolist() == [4, 0, 2, 0]


def test_hash_depends_on_every_draw():
    base = _draw([0.5, 0.5], 5, 2)
    changed = base.cohorts.copy()
    changed[3, 1] = 1 - changed[3, 1]
    assert base.sha256 == _draw([0.5, 0.5], 5, 2).sha256
    assert base.sha256 != Schedule(cohorts=changed, clients=2).sha256
    assert base == _draw([0.5, 0.5], 5, 2)
    assert base != _draw([0.5, 0.5], 5, 2, seed=1)


@pytest.mark.parametrize(
    ("p", "message"),
    [([], "finite numbers"), ([0.5, np.nan], "finite"), ([0.5, 0.6], "sum of"), ([-0.5, 1.5], "0")],
)
def test_bad_probabilities(p, message):
    with pytest.raises(InputError, match=message):
        _draw(p, 2, 2)


@pytest.mark.parametrize(("rounds", "cohort"), [(0, 1), (1, 0), (1.5, 2)])
def test_bad_shape(rounds, cohort):
    with pytest.raises(InputError):
        _draw([1.0], rounds, cohort)


def test_cohorts_must_name_known_clients():
    with pytest.raises(InputError, match="positions 0 to 1"):
        Schedule(cohorts=np.array([[0, 2]]), clients=2)
