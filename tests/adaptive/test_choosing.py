# SPDX-License-Identifier: Apache-2.0
"""Drawing, ranking and filling a cohort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpcohort.adaptive.rule import (
    RoundView,
    draw_without_replacement,
    filled_cohort,
    largest,
    shrunk,
)
from dpcohort.errors import BudgetExceededError


def test_the_first_draw_has_the_weights_as_probabilities(view_of):
    weights, hits = np.array([1.0, 2.0, 5.0]), np.zeros(3)
    for seed in range(4000):
        view = view_of([1, 1, 1], seed=seed)
        drawn = draw_without_replacement(view, np.arange(3), 1, weights=weights, purpose="x")
        hits[drawn] += 1
    assert ((hits - 500 * weights) ** 2 / (500 * weights)).sum() < 23  # chi2(2): below 1e-5


def test_weight_zero_comes_last_but_comes(view_of):
    view = view_of([1, 1, 1])
    weights = np.array([0.0, 1.0, 1.0])
    for count, expected in ((2, {1, 2}), (3, {0, 1, 2}), (9, {0, 1, 2})):
        drawn = draw_without_replacement(view, np.arange(3), count, weights=weights, purpose="x")
        assert set(drawn.tolist()) == expected
        assert drawn.size == len(expected)


def test_largest_takes_the_largest_and_breaks_ties_by_dice(view_of):
    view = view_of([1] * 6)
    assert set(largest(view, np.arange(6), 2, scores=np.arange(6.0)).tolist()) == {4, 5}
    tied = {
        largest(view_of([1] * 6, seed=s), np.arange(6), 1, scores=np.ones(6)).item()
        for s in range(40)
    }
    assert len(tied) > 3


def test_a_whole_choice_is_kept(view_of):
    assert filled_cohort(view_of([1] * 5), np.array([3, 1])).tolist() == [3, 1]


def test_missing_places_go_to_other_candidates(view_of):
    view = view_of([1] * 5, draws_left=np.array([1, 1, 0, 1, 0]), cohort_size=3)
    cohort = filled_cohort(view, np.array([3]))
    assert sorted(cohort.tolist()) == [0, 1, 3]


def test_too_few_candidates_are_drawn_again_within_their_caps(view_of):
    view = view_of([1] * 4, draws_left=np.array([3, 0, 1, 0]), cohort_size=4)
    cohort = filled_cohort(view, np.array([], dtype=np.int64))
    assert sorted(cohort.tolist()) == [0, 0, 0, 2]


def test_spare_draws_are_spread_although_one_client_is_public(view_of):
    """A public client has all draws of the training left, and is no more than one of them."""
    view = view_of([1] * 4, draws_left=np.array([5, 5, 1000, 5]), cohort_size=11)
    times = np.bincount(filled_cohort(view, np.array([0])), minlength=4)
    assert sorted(times.tolist()) == [2, 3, 3, 3]


def test_spare_draws_are_spread_over_the_rounds_too(view_of):
    """One spare draw a round: each client gets it once in as many rounds as there are clients."""
    left, cohorts = np.array([50, 50, 1000, 50]), []
    for t in range(8):
        view = view_of(
            [1] * 4, round=t, draws_left=left.copy(), cohorts=tuple(cohorts), cohort_size=5
        )
        cohorts.append(filled_cohort(view, np.array([], dtype=np.int64)))
        np.subtract.at(left, cohorts[-1], 1)
    assert np.bincount(np.concatenate(cohorts)).tolist() == [10] * 4


def test_a_client_that_its_cap_stops_leaves_its_share_to_the_others(view_of):
    view = view_of([1] * 3, draws_left=np.array([1, 9, 1000]), cohort_size=9)
    times = np.bincount(filled_cohort(view, np.array([], dtype=np.int64)), minlength=3)
    assert times.tolist() == [1, 4, 4]


def test_caps_that_cannot_hold_a_cohort_are_not_exceeded(view_of):
    view = view_of([1] * 2, draws_left=np.array([1, 1]), cohort_size=3)
    with pytest.raises(BudgetExceededError, match=r"2 draws left .* cohort of 3"):
        filled_cohort(view, np.array([], dtype=np.int64))


@pytest.mark.parametrize("seed", range(5))
def test_the_fallback_looks_at_nothing_but_sizes_caps_and_dice(view_of, seed):
    reports = view_of([1] * 6, seed=seed, cohort_size=4)
    assert np.array_equal(
        filled_cohort(reports, np.array([0])),
        filled_cohort(view_of([1] * 6, seed=seed, cohort_size=4, epsilon=np.zeros(6)), [0]),
    )


def test_shrinking_by_hand():
    # Equal noise 1, answers 0 and 4: m = 2, Q - 1 = 8 - 1, v = 7 / (2 - 1) = 7, factor 7/8.
    assert shrunk(np.array([0.0, 4.0]), np.ones(2)) == pytest.approx([0.25, 3.75])


def test_reports_that_tell_nothing_all_count_alike():
    assert shrunk(np.array([1.0, 1.1]), np.array([5.0, 9.0])).std() == 0


def test_reports_without_noise_stay_as_they_are():
    assert shrunk(np.array([1.0, 7.0]), np.zeros(2)).tolist() == [1.0, 7.0]
    assert shrunk(np.array([3.0]), np.ones(1)).tolist() == [3.0]


@settings(max_examples=60, deadline=None)
@given(
    left=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    cohort_size=st.integers(1, 8),
    seed=st.integers(0, 2**32),
    chosen=st.integers(0, 8),
)
def test_a_cohort_is_whole_and_within_the_caps(left, cohort_size, seed, chosen):
    caps = np.array(left)
    assume(caps.sum() >= cohort_size)
    view = RoundView(
        round=0,
        cohort_size=cohort_size,
        ids=tuple(f"c{k}" for k in range(caps.size)),
        sizes=np.ones(caps.size, dtype=np.int64),
        epsilon=np.ones(caps.size),
        public=np.zeros(caps.size, dtype=np.bool_),
        draws_left=caps,
        reports_left=caps,
        seed=seed,
    )
    wanted = view.candidates[:chosen]
    cohort = filled_cohort(view, wanted)
    assert cohort.size == cohort_size
    times = np.bincount(cohort, minlength=caps.size)
    assert (times <= caps).all()
    below = times < caps
    if below.any():  # nobody is heard more than once more often than one who could be heard more
        assert times.max() <= times[below].min() + 1
    assert set(wanted[:cohort_size].tolist()) <= set(cohort.tolist())
