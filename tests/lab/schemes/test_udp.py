# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting import certify_epsilon
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.lab.schemes.udp import UDP, _Course, discounted_noise, formula_noise


def test_the_published_noise_by_hand():
    # s = D sqrt(2 q T ln(1/delta)) / epsilon with D = 2 alpha C / n, in units of alpha C / n.
    lr, clip, n, q, rounds, epsilon, delta = 0.1, 20.0, 800, 0.5, 30, 8.0, 0.01
    change = 2 * lr * clip / n
    s = change * math.sqrt(2 * q * rounds * math.log(1 / delta)) / epsilon
    found = formula_noise(epsilon=epsilon, delta=delta, rounds=q * rounds) * lr * clip / n
    assert found == pytest.approx(s)


def test_discounting_spreads_what_is_left():
    # Budget 1 in sum 1/z^2: two of four uploads at z = 2, then one left instead of two.
    assert discounted_noise(left=4, budget=1.0, spent=0.0) == pytest.approx(2.0)
    assert discounted_noise(left=1, budget=1.0, spent=0.5) == pytest.approx(math.sqrt(2))
    with pytest.raises(BudgetExceededError, match="is spent"):
        discounted_noise(left=1, budget=1.0, spent=1.0)


@pytest.mark.parametrize("mode", ["honest", "formula"])
@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "crd"])
def test_noise_law(silent, mean_square, mode, adaptive):
    scheme = UDP(mode=mode, adaptive_rounds=adaptive)
    outcome = scheme.run(silent)
    assert outcome.rounds == silent.training.rounds  # a loss that only falls discounts nothing
    course, wanted = _Course(scheme, silent), []
    for t, cohort in enumerate(course.cohorts):
        course.look(t, None)
        stds = [
            course.next_noise(t, int(k)) * 0.5 * silent.training.clip / int(silent.sizes[k])
            for k in cohort
        ]
        wanted.append(math.sqrt(sum(s**2 for s in stds)) / cohort.size)
    count = len(wanted) * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "crd"])
def test_training_on_digits_keeps_every_promise(federation, adaptive):
    outcome = UDP(adaptive_rounds=adaptive).run(federation)
    assert outcome.broken == 0
    assert outcome.largest_share > 0.99
    for receipt in outcome.receipts:
        if not adaptive and receipt.uses:
            again = certify_epsilon(
                noise_multiplier=receipt.noise_multiplier, delta=1e-5, sampling_rate=1.0,
                steps=receipt.uses, neighbours="replace-one",
            )  # fmt: skip
            assert again == pytest.approx(receipt.certified_epsilon, rel=1e-3)


class Rising:
    """A federation whose public loss rises after every round."""

    def __init__(self, federation) -> None:
        self._federation, self._loss = federation, 0.0

    def __getattr__(self, name):
        return getattr(self._federation, name)

    def __len__(self) -> int:
        return len(self._federation)

    def server_loss(self, weights) -> float:
        self._loss += 1
        return self._loss


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_a_rising_loss_shortens_the_training_and_never_passes_the_cap(silent, mode):
    course = _Course(UDP(mode=mode, adaptive_rounds=True), Rising(silent))
    t, rounds = 0, []
    while True:
        course.look(t, None)
        if t >= course.rounds:
            break
        rounds.append(course.rounds)
        for k in course.cohorts[t]:
            course.next_noise(t, int(k))
        t += 1
    # 24 -> ceil(0.8 * 24) = 20 -> 16 -> 13 -> 11 -> ...: from the second look on.
    assert rounds[:5] == [24, 24, 20, 16, 13]
    assert len(rounds) < 24
    assert (course.spent <= course.budget).all()
    assert (course.charged <= course.budget).all()
    if mode == "honest":
        # The noise followed the outputs: only the cap is proved, for whoever uploaded how often.
        course.spent[:] = 0.0
        shares = [r.certified_epsilon / r.promised_epsilon for r in course.receipts()]
        assert min(shares) > 0.999


def test_several_local_steps_cost_what_is_proved_not_what_is_claimed(federation):
    honest = UDP(local_steps=2)
    assert honest.sensitivity(np.array([50]))[0] == 100
    claimed = UDP(local_steps=2, mode="formula").run(federation)
    assert claimed.broken == len(federation)
    assert claimed.largest_share > 10


def test_bad_settings_are_named():
    with pytest.raises(InputError, match="discount"):
        UDP(discount=1.0)
    with pytest.raises(InputError, match="local_steps"):
        UDP(local_steps=0)
