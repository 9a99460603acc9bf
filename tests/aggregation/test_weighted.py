# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from dpcohort.aggregation import (
    Cohort,
    EpsilonWeighted,
    ImportanceCompensated,
    InverseVariance,
    Mean,
    MinimumNoise,
    SizeWeighted,
    TrimmedMean,
)
from dpcohort.aggregation._rule import sum_of_rows
from dpcohort.errors import InputError


def test_threads_change_no_bit() -> None:
    """The engine lets this rule use all threads, and a run must repeat on every machine."""
    updates = torch.randn(10, 300_001, generator=torch.Generator().manual_seed(0))
    cohort = Cohort(
        round=0,
        clients=np.arange(10),
        draws=np.zeros(10, dtype=np.int64),
        noise_multipliers=np.ones(10),
        batch_sizes=np.ones(10, dtype=np.int64),
        noise_stds=np.ones(10),
    )
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(Mean().combine(updates, cohort))
            assert torch.equal(sum_of_rows(updates) / 10, found[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.allclose(found[0], updates.double().mean(0).float(), atol=1e-6)


def test_a_hand_computed_case(make_cohort):
    cohort = make_cohort([1.0, 1.0, 1.0], clients=[2, 0, 2])
    combined = SizeWeighted(sizes=[10, 500, 20]).combine(torch.eye(3), cohort)
    assert combined.tolist() == pytest.approx([0.4, 0.2, 0.4])


@pytest.mark.parametrize("sizes", [[10, 0], [10, -1], []])
def test_a_client_without_records_is_refused(sizes):
    with pytest.raises(InputError, match="sizes"):
        SizeWeighted(sizes=sizes)


def weights_of(rule, cohort):
    return rule.combine(torch.eye(len(cohort), dtype=torch.float64), cohort).tolist()


def test_a_hand_computed_case_epsilon_weighted(make_cohort):
    cohort = make_cohort(np.ones(3), clients=[1, 0, 1])
    assert weights_of(EpsilonWeighted(epsilon=[2.0, 1.0]), cohort) == pytest.approx(
        [0.25, 0.5, 0.25]
    )


def test_public_clients_count_as_the_largest_epsilon_of_the_population(make_cohort):
    epsilon = [1.0, np.nan, 3.0]
    pair = make_cohort([1.0, 0.0])  # the client of epsilon 3 is not in this cohort
    assert weights_of(EpsilonWeighted(epsilon=epsilon), pair) == pytest.approx([1 / 4, 3 / 4])
    named = EpsilonWeighted(epsilon=epsilon, public_epsilon=9.0)
    assert weights_of(named, pair) == pytest.approx([0.1, 0.9])


@pytest.mark.parametrize("epsilon", [[0.0], [1.0, -1.0], [np.inf], [], 1.0, ["a lot"]])
def test_bad_epsilons_are_refused(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        EpsilonWeighted(epsilon=epsilon)


def test_a_public_epsilon_of_zero_is_refused():
    with pytest.raises(InputError, match="public_epsilon = 0"):
        EpsilonWeighted(epsilon=[1.0], public_epsilon=0)


STDS = np.array([0.5, 1.0, 4.0, 1.0])


def test_a_hand_computed_case_inverse_variance(make_cohort):
    weights = InverseVariance().weights(make_cohort([1.0, 2.0]))
    assert weights.tolist() == pytest.approx([0.8, 0.2])
    spread = InverseVariance(data_variance=2.0).weights(make_cohort([1.0, 2.0]))
    assert spread.tolist() == pytest.approx([2 / 3, 1 / 3])


@given(direction=arrays(np.float64, 4, elements=st.floats(-1, 1)), spread=st.floats(0, 10))
def test_no_other_weights_that_sum_to_one_have_less_variance(direction, spread):
    cohort = Cohort(
        round=0, clients=np.arange(4), draws=np.zeros(4, dtype=np.int64), noise_multipliers=STDS,
        batch_sizes=np.ones(4, dtype=np.int64), noise_stds=STDS,
    )  # fmt: skip
    weights = InverseVariance(data_variance=spread).weights(cohort)
    variances = spread + STDS**2
    assert weights.sum() == pytest.approx(1.0, abs=1e-15)
    other = weights + (direction - direction.mean())  # still sums to 1
    assert (variances * weights**2).sum() <= (variances * other**2).sum() * (1 + 1e-12)


def test_the_noise_of_the_result_is_what_the_formula_says(make_cohort):
    noise = torch.randn(4, 200_000, generator=torch.Generator().manual_seed(1)).double()
    noise *= torch.as_tensor(STDS)[:, None]
    combined = InverseVariance().combine(noise, make_cohort(STDS))
    # 1 / sum 1/s^2; the sample variance of 200,000 values has relative std 0.32 %.
    assert float(combined.var()) == pytest.approx(1 / (1 / STDS**2).sum(), rel=0.015)
    assert float(combined.var()) < 0.2 * float(noise.mean(0).var())


def test_draws_without_noise_have_a_finite_weight(make_cohort):
    weights = InverseVariance().weights(make_cohort([0.0, 2.0, 4.0]))
    assert weights[0] / weights[1] == pytest.approx(100.0)
    assert weights[1] / weights[2] == pytest.approx(4.0)
    known = InverseVariance(data_variance=1.0).weights(make_cohort([0.0, 2.0]))
    assert known[0] / known[1] == pytest.approx(5.0)  # (1 + 4) / 1: no floor is needed


@pytest.mark.parametrize("stds", [[1e-300, 1e300], [1e-300, 1e-300], [0.0, 1e-300, 1e300]])
@pytest.mark.parametrize("spread", [0.0, 1e-300, 1e300])
def test_no_noise_is_too_small_or_too_large(make_cohort, stds, spread):
    weights = InverseVariance(data_variance=spread).weights(make_cohort(stds))
    assert np.isfinite(weights).all()
    assert weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [{"floor": 0.0}, {"floor": 2.0}, {"data_variance": -1.0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        InverseVariance(**bad)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_subset_has_a_mean_of_less_noise(make_cohort, seed):
    rng = np.random.default_rng(seed)
    stds = rng.choice([0.3, 0.5, 1.0, 2.0, 5.0], size=6) * rng.choice([1.0, 1.1], size=6)
    kept = MinimumNoise().kept(make_cohort(stds))
    noises = [
        (stds[list(subset)] ** 2).sum() / len(subset) ** 2
        for size in range(1, 7)
        for subset in itertools.combinations(range(6), size)
    ]
    assert (stds[kept] ** 2).sum() / kept.sum() ** 2 == pytest.approx(min(noises))


@pytest.mark.parametrize(
    ("stds", "kept"),
    [
        ([1.0, 1.0, 1.0], [True, True, True]),
        ([0.0, 2.0, 0.0], [True, False, True]),
        ([1.0, 9.0, 9.0], [True, False, False]),
        ([1e-200, 1e200], [True, False]),
        ([9.0, 1.0, 1.5], [False, True, True]),
    ],
)
def test_hand_computed_cases(make_cohort, stds, kept):
    cohort = make_cohort(stds)
    assert MinimumNoise().kept(cohort).tolist() == kept
    combined = MinimumNoise().combine(torch.eye(len(stds)), cohort)
    assert combined.tolist() == pytest.approx([keep / sum(kept) for keep in kept])


UNBIASED = np.array([0.5, 0.3, 0.2])
CHOSEN = np.array([0.1, 0.15, 0.75])


@pytest.fixture
def expectation(make_cohort):
    """The expectation of a rule over all cohorts of K independent draws, by enumeration."""

    def expect(rule, updates, draws):
        total = torch.zeros(updates.shape[1], dtype=updates.dtype)
        for who in itertools.product(range(3), repeat=draws):
            clients = np.array(who)
            combined = rule.combine(updates[clients], make_cohort(np.ones(draws), clients))
            total += float(np.prod(CHOSEN[clients])) * combined
        return total

    return expect


@pytest.mark.parametrize("draws", [1, 2, 4])
def test_it_is_unbiased_over_all_possible_cohorts(expectation, draws):
    updates = torch.tensor([[1.0, -4.0], [10.0, 3.0], [-7.0, 0.5]], dtype=torch.float64)
    wanted = torch.as_tensor(UNBIASED) @ updates
    rule = ImportanceCompensated(probabilities=CHOSEN, unbiased=UNBIASED)
    torch.testing.assert_close(expectation(rule, updates, draws), wanted, rtol=1e-13, atol=1e-13)
    # The plain mean is not: it stands for p^s.
    assert (expectation(Mean(), updates, draws) - wanted).norm() > 1.0


def test_it_is_the_mean_where_the_selection_is_unbiased(make_cohort):
    updates = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    cohort = make_cohort(np.ones(4), clients=[0, 2, 2, 1])
    rule = ImportanceCompensated(probabilities=UNBIASED, unbiased=UNBIASED)
    torch.testing.assert_close(rule.combine(updates, cohort), updates.mean(0))


def test_a_client_that_is_never_drawn_cannot_be_made_up_for():
    with pytest.raises(InputError, match=r"client 1 \(2 in all\) is never drawn"):
        ImportanceCompensated(probabilities=[1.0, 0.0, 0.0], unbiased=UNBIASED)


def test_a_client_nobody_counts_may_be_left_out_but_not_drawn(make_cohort):
    rule = ImportanceCompensated(probabilities=[0.5, 0.5, 0.0], unbiased=[0.5, 0.5, 0.0])
    assert rule.combine(torch.eye(2), make_cohort([1.0, 1.0])).tolist() == [0.5, 0.5]
    with pytest.raises(InputError, match="client 2 is drawn in round 3 but has probability 0"):
        rule.combine(torch.eye(1), make_cohort([1.0], clients=[2]))


@pytest.mark.parametrize(
    ("chosen", "unbiased", "message"),
    [
        ([0.5, 0.6], [0.5, 0.5], "sum of probabilities"),
        ([0.5, 0.5], [0.5, 0.4], "sum of unbiased"),
        ([0.5, 0.5], [1.0], "length of unbiased"),
        ([1.5, -0.5], [0.5, 0.5], r"probabilities\[1\]"),
    ],
)
def test_bad_probabilities_are_explained(chosen, unbiased, message):
    with pytest.raises(InputError, match=message):
        ImportanceCompensated(probabilities=chosen, unbiased=unbiased)


@pytest.mark.parametrize("trim", [0.0, 0.1, 0.2, 0.33, 0.49])
def test_a_trimmed_mean_against_scipy(make_cohort, trim):
    updates = torch.randn(10, 7, generator=torch.Generator().manual_seed(0)).double()
    combined = TrimmedMean(trim=trim).combine(updates, make_cohort([1.0] * 10))
    expected = trim_mean(updates.numpy(), trim, axis=0)
    np.testing.assert_allclose(combined.numpy(), expected, rtol=1e-13)
