# SPDX-License-Identifier: Apache-2.0
"""Two accountants on mixed histories."""

from __future__ import annotations

import math
import random

import pytest

from dpcohort.accounting import Event, History, certify_epsilon, gaussian_delta
from dpcohort.accounting import _events as accounting
from dpcohort.accounting._events import history_epsilon


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("z", "rate", "steps", "report_z", "report_rate", "reports"),
    [(2.0, 0.1, 50, 20.0, 1.0, 10), (8.0, 0.3, 20, 30.0, 0.3, 40), (1.0, 0.05, 5, 5.0, 1.0, 1)],
    ids=["usual", "mini-batch", "few"],
)
def test_they_agree(neighbours, z, rate, steps, report_z, report_rate, reports):
    history = History(
        (
            Event.of(noise_multiplier=z, sampling_rate=rate, steps=steps, neighbours=neighbours),
            Event.of(
                noise_multiplier=report_z,
                sampling_rate=report_rate,
                steps=reports,
                neighbours=neighbours,
            ),
        )
    )
    ours, theirs = (history_epsilon(history, 1e-5, method) for method in ("pld", "auto"))
    assert ours == pytest.approx(theirs, rel=2e-3)


def test_steps_all_but_without_noise_hide_nothing_whatever_else_there_was():
    usual = Event.of(noise_multiplier=5.0, sampling_rate=0.1, steps=9)
    bare = Event.of(noise_multiplier=1e-8, sampling_rate=1.0, steps=1)
    both = History((usual, bare))
    assert both.epsilon(1e-5) >= History((bare,)).epsilon(1e-5) > 1e15


def _any_history(dice: random.Random, relation: str) -> History:
    """Steps of every rate and noise, most of them mixed with steps without sampling."""
    rates = (1e-9, 1e-6, 1e-4, 0.01, 0.2, 0.9, 0.999999, 1 - 2**-53, 1.0, 1.0, 1.0)
    return History(
        tuple(
            Event.of(
                noise_multiplier=10 ** dice.uniform(-3, 3),
                sampling_rate=dice.choice(rates),
                steps=int(10 ** dice.uniform(0, 5)),
                sampler=dice.choice(("poisson", "fixed" if relation != "zero-out" else "poisson")),
                neighbours=relation,
            )
            for _ in range(dice.choice((1, 2, 2, 3)))
        )
    )


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_every_history_has_an_epsilon_no_smaller_than_its_unsampled_steps(relation):
    dice = random.Random(29)
    for _ in range(60):
        history, delta = _any_history(dice, relation), 10 ** dice.uniform(-12, -0.3)
        found = [history_epsilon(history, delta, method) for method in ("pld", "auto")]
        assert all(math.isfinite(one) for one in found), history
        assert 0 <= history.delta(min(found)) <= 1, history
        # steps without sampling alone are one Gaussian mechanism, whose δ is known exactly
        whole = [e for e in history.events if e.mechanism.sampling_rate == 1]
        width = 1.0 if relation == "zero-out" else 2.0
        mu = width * math.sqrt(sum(one.steps / one.mechanism.noise_multiplier**2 for one in whole))
        assert gaussian_delta(epsilon=min(found), mu=mu) <= delta * (1 + 1e-6), history


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("z", [0.04, 0.11, 0.3])
def test_all_records_with_little_noise_cost_what_one_gaussian_costs(z, steps):
    whole: dict = {"noise_multiplier": z, "steps": steps, "sampling_rate": 1.0}
    exact = History((Event.of(**whole),)).epsilon(1e-5)
    assert gaussian_delta(epsilon=exact, mu=math.sqrt(steps) / z) <= 1e-5
    assert gaussian_delta(epsilon=exact * (1 - 1e-9), mu=math.sqrt(steps) / z) > 1e-5
    for neighbours in ("zero-out", "replace-one"):
        second = certify_epsilon(**whole, delta=1e-5, neighbours=neighbours)
        ours = certify_epsilon(**whole, delta=1e-5, neighbours=neighbours, method="pld")
        assert second == pytest.approx(ours, rel=2e-3)
    mixed = History((Event.of(**whole), Event.of(noise_multiplier=9.0, sampling_rate=0.1, steps=3)))
    assert exact <= mixed.epsilon(1e-5) <= exact * 1.02


def test_a_rate_next_to_one_is_no_better_than_one():
    for rate in (1 - 2**-53, 1 - 1e-10, 1 - 1e-6):
        near, one = (
            History(
                (
                    Event.of(noise_multiplier=0.5, sampling_rate=each, steps=7),
                    Event.of(noise_multiplier=3.0, sampling_rate=0.2, steps=7),
                )
            ).epsilon(1e-6)
            for each in (rate, 1.0)
        )
        assert near == pytest.approx(one, rel=1e-3)


def test_outputs_that_are_told_apart_are_not_called_alike():
    loud = Event.of(noise_multiplier=0.04, sampling_rate=1.0, steps=1)
    quiet = Event.of(noise_multiplier=3.0, sampling_rate=0.2, steps=1)
    assert History((loud, quiet)).delta(0.0) == 1.0


def test_accounting_that_fails_proves_nothing_and_raises_nothing(monkeypatch):
    def fails(*_args, **_keywords):
        raise FloatingPointError("no number")

    monkeypatch.setattr(accounting, "_library", fails)
    event = Event.of(noise_multiplier=2.0, sampling_rate=0.123, steps=51)
    assert history_epsilon(History((event,)), 1e-5) == History((event,)).epsilon(1e-5)
    truth = History((Event.of(noise_multiplier=2.0, sampling_rate=0.1239, steps=51),)).delta(1.0)
    monkeypatch.setattr(accounting, "grid_epsilon", fails)
    monkeypatch.setattr(accounting, "grid_delta", fails)
    other = History((Event.of(noise_multiplier=2.0, sampling_rate=0.124, steps=51),))
    assert history_epsilon(other, 1e-5) == math.inf
    assert other.delta(1.0) > 10 * truth
