# SPDX-License-Identifier: Apache-2.0
"""Balls-in-bins sampling: what one draw of several steps spends, and how its records are thrown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpcohort.accounting import (
    Contract,
    Event,
    History,
    calibrate_noise,
    certify_delta,
    certify_epsilon,
)
from dpcohort.accounting._balls_in_bins import BallsInBins, DrawLoss
from dpcohort.accounting._composition import grid_delta
from dpcohort.accounting._samplers import sampler_of
from dpcohort.errors import InputError


def spent(z, bins, steps, draws=1, delta=1e-5, sampler="balls-in-bins"):
    return certify_epsilon(
        noise_multiplier=z,
        delta=delta,
        sampling_rate=1 / bins,
        steps=draws * steps,
        sampler=sampler_of(sampler).over(steps),
        method="pld",
    )


def ratios(shift, bins, steps, count, seed=0):
    """W at outputs of Q."""
    x = np.random.default_rng(seed).standard_normal((count, steps))
    return (bins - steps) / bins + np.exp(shift * x - shift**2 / 2).sum(axis=1) / bins


def test_with_one_local_step_it_is_poisson_sampling():
    for z, bins, draws in ((0.8, 7, 30), (3.0, 200, 500)):
        assert spent(z, bins, 1, draws) == spent(z, bins, 1, draws, sampler="poisson")
    z = calibrate_noise(
        epsilon=1.0, delta=1e-5, sampling_rate=0.1, steps=40, sampler=sampler_of("balls-in-bins")
    )
    poisson = calibrate_noise(epsilon=1.0, delta=1e-5, sampling_rate=0.1, steps=40)
    assert z == pytest.approx(poisson, rel=2e-3)


@pytest.mark.parametrize(("shift", "bins"), [(1.0, 2), (0.5, 5), (2.0, 9)])
def test_two_steps_against_numeric_integration(shift, bins):
    x = np.linspace(-9, 9 + shift, 4001)
    weight = stats.norm.pdf(x)
    moved = np.exp(shift * x - shift**2 / 2)
    ratio = (bins - 2) / bins + (moved[:, None] + moved[None, :]) / bins
    both = weight[:, None] * weight[None, :]

    def exact(values):
        return integrate.simpson(integrate.simpson(both * np.maximum(values, 0), x=x), x=x)

    for epsilon in (0.05, 0.3, 1.0):
        removed, added = exact(ratio - math.exp(epsilon)), exact(1 - math.exp(epsilon) * ratio)
        for kind, truth in (("remove", removed), ("add", added)):
            if truth > 1e-12:
                found = grid_delta([(DrawLoss(kind, shift, bins, 2), 1)], epsilon)
                assert truth * (1 - 1e-5) <= found <= truth * 1.003, (kind, epsilon)


@pytest.mark.parametrize(("shift", "bins", "steps"), [(1.0, 10, 10), (0.5, 10, 4), (2.0, 24, 19)])
@pytest.mark.parametrize("draws", [1, 3])
def test_against_a_simulation_of_the_likelihood_ratio(shift, bins, steps, draws):
    count = 200_000
    total = math.prod(
        (ratios(shift, bins, steps, count, seed) for seed in range(draws)), start=np.ones(count)
    )
    for epsilon in (0.0, 0.2, 0.6):
        for kind, values in (
            ("remove", np.maximum(total - math.exp(epsilon), 0)),
            ("add", np.maximum(1 - math.exp(epsilon) * total, 0)),
        ):
            found = grid_delta([(DrawLoss(kind, shift, bins, steps), draws)], epsilon)
            error = values.std() / math.sqrt(count)
            assert values.mean() - 4.5 * error <= found * (1 + 1e-9)
            if values.mean() > 20 * error:
                assert found <= values.mean() + 4.5 * error


def test_unused_bins_hide_a_record_and_every_further_step_spends_more():
    by_steps = [spent(0.9, 12, steps, draws=4) for steps in (1, 2, 3, 6, 12)]
    assert by_steps == sorted(by_steps)
    assert spent(0.9, 12, 12) < spent(0.9, 12, 12, draws=2) < spent(0.8, 12, 12, draws=2)
    assert spent(0.9, 13, 12) < spent(0.9, 12, 12)
    assert spent(0.9, 12, 12, delta=1e-6) > spent(0.9, 12, 12)
    # A record is in one batch at most: an epoch spends less than one step with all records.
    assert spent(0.9, 12, 12) < spent(0.9, 1, 1)


def test_histories_mix_samplers():
    epoch = Event.of(
        noise_multiplier=1.2, sampling_rate=1 / 8, steps=24, sampler=BallsInBins().over(8)
    )
    step = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=20)
    both = History((epoch, step))
    assert both.steps == 44
    assert max(History((e,)).epsilon(1e-5) for e in both.events) < both.epsilon(1e-5)
    assert both.epsilon(1e-5) == History((step, epoch)).epsilon(1e-5)
    assert both.delta(both.epsilon(1e-5)) <= 1e-5 * (1 + 1e-3)
    assert Event.from_dict(epoch.to_dict()) == epoch
    assert epoch.to_dict()["local_steps"] == 8


def test_noise_without_sampling_is_a_bound_and_little_noise_is_certified_by_it():
    whole = spent(0.01, 5, 5)
    assert whole == certify_epsilon(noise_multiplier=0.01, delta=1e-5, sampling_rate=1.0, steps=1)


@pytest.mark.parametrize(("epsilon", "bins", "steps", "draws"), [(1.0, 10, 5, 20), (4.0, 6, 6, 9)])
def test_calibrated_noise_keeps_the_promise_and_is_the_least(epsilon, bins, steps, draws):
    sampling = {
        "sampling_rate": 1 / bins,
        "steps": draws * steps,
        "sampler": BallsInBins().over(steps),
    }
    z = calibrate_noise(epsilon=epsilon, delta=1e-5, **sampling)
    assert certify_delta(noise_multiplier=z, epsilon=epsilon, **sampling) <= 1e-5
    assert certify_delta(noise_multiplier=z * 0.997, epsilon=epsilon, **sampling) > 1e-5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Contract(sampler="balls-in-bins", neighbours="replace-one"), "'zero-out' when"),
        (lambda: Contract.of("paper", "balls-in-bins"), "'tight' when sampler"),
        (lambda: spent(1.0, 4, 5), "at most the 4 bins"),
        (
            lambda: Event.of(
                noise_multiplier=1.0, sampling_rate=0.3, steps=1, sampler="balls-in-bins"
            ),
            "a whole number b of bins",
        ),
        (
            lambda: Event.of(
                noise_multiplier=1.0, sampling_rate=0.1, steps=7, sampler=BallsInBins(2)
            ),
            "a multiple of the 2",
        ),
        (
            lambda: certify_epsilon(
                noise_multiplier=1.0, delta=1e-5, sampling_rate=0.1, steps=1,
                sampler="balls-in-bins", method="dp-accounting",
            ),
            "no tight bound for balls-in-bins batches",
        ),
        (lambda: BallsInBins().batch_size(0.1, 100), "is not served by guards"),
    ],
)  # fmt: skip
def test_what_is_not_proved_is_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_bins_are_rounded_up_so_that_a_bin_holds_at_most_b_records_on_average():
    rates = BallsInBins().rates(np.array([60, 61, 64, 7]), np.array([8, 8, 8, 8]))
    assert (1 / rates).tolist() == [8, 8, 8, 1]
    # The bins are found again from every rate, by accounting and by drawing alike.
    for bins in (*range(1, 5000), 12_345_678):
        assert BallsInBins()._bins(1.0 / bins) == bins


class Words:
    """Fresh words of a seed."""

    is_fresh = True

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.asked = 0

    def words(self, count, step):
        self.asked += 1
        return self.rng.integers(0, 2**64, count, dtype=np.uint64)


def test_the_batches_of_a_draw_are_disjoint_and_those_of_an_epoch_have_every_record():
    stream, sampler = Words(0), BallsInBins().over(8)
    seen = np.zeros((50, 40, 8))
    for draw in seen:
        batches = sampler.draw(stream, size=40, rate=1 / 8, batch_size=5)
        for step in range(8):
            draw[batches(step), step] = 1
    assert stream.asked == 50  # thrown once a draw
    assert (seen.sum(axis=2) == 1).all()
    assert stats.chisquare(seen.sum(axis=(0, 1))).pvalue > 1e-4
    with pytest.raises(InputError, match="step"):
        batches(8)


def test_words_that_would_favour_a_bin_are_drawn_again():
    answers = iter([[2**64 - 1, 5], [2**64 - 2, 5]])

    class Fixed(Words):
        def words(self, count, step):
            return np.array(next(answers), dtype=np.uint64)

    batches = BallsInBins().over(3).draw(Fixed(0), size=2, rate=1 / 3, batch_size=1)
    assert [batches(step).tolist() for step in range(3)] == [[], [], [0, 1]]
