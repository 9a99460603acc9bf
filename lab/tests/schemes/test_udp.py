# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting import certify_epsilon
from dpcohort.errors import BudgetExceededError
from dpcohort_lab.schemes import client_noise
from dpcohort_lab.schemes.client_noise import discounted_noise, formula_noise, udp_noise
from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.scheme import participations


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
    outcome = make_scheme("udp-crd" if adaptive else "udp", mode).run(silent)
    assert outcome.rounds == silent.training.rounds  # a loss that only falls discounts nothing
    cohorts = silent.cohorts()
    uploads = participations(cohorts, len(silent))
    caps, noise = udp_noise(silent, mode, uploads, np.ones(len(silent)))
    if adaptive and mode == "honest":  # what is left is spread evenly over the planned uploads
        noise = np.sqrt(uploads / caps)
    stds = noise * 0.5 * silent.training.clip / silent.sizes
    wanted = [math.sqrt((stds[cohort] ** 2).sum()) / cohort.size for cohort in cohorts]
    count = len(wanted) * silent.dimension
    assert abs(mean_square(silent, wanted) - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "crd"])
def test_training_on_digits_keeps_every_promise(simulation, adaptive):
    outcome = make_scheme("udp-crd" if adaptive else "udp").run(simulation)
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
    """A simulation whose public loss rises after every round."""

    def __init__(self, simulation) -> None:
        self._calm, self._loss = simulation, 0.0

    def __getattr__(self, name):
        return getattr(self._calm, name)

    def __len__(self) -> int:
        return len(self._calm)

    def server_loss(self, weights) -> float:
        self._loss += 1
        return self._loss


@pytest.mark.parametrize("mode", ["honest", "formula"])
def test_a_rising_loss_shortens_the_training_and_never_passes_the_cap(silent, mode, monkeypatch):
    asked = []

    def spy(*, left, budget, spent):
        asked.append((left, budget, spent, discounted_noise(left=left, budget=budget, spent=spent)))
        return asked[-1][-1]

    monkeypatch.setattr(client_noise, "discounted_noise", spy)
    found = make_scheme("udp-crd", mode).run(Rising(silent))
    # Rounds 24 -> ceil(0.8 * 24) = 20 -> 16 -> 13 -> 11 -> 9 -> 8, from the third round on.
    assert found.rounds == 8
    assert found.notes[0].startswith("CRD: 8 of 24 rounds")
    assert asked
    assert all(spent + noise**-2 <= budget for _, budget, spent, noise in asked)
    if mode == "honest":
        # The noise followed the outputs: only the cap is proved, for whoever uploaded how often.
        shares = [r.certified_epsilon / r.promised_epsilon for r in found.receipts]
        assert min(shares) > 0.999
    else:  # every client is charged for every round: 24, 23, then 18 of 20 left, 13 of 16, ...
        private = len(silent)
        assert [left for left, *_ in asked[::private]] == [24, 23, 18, 13, 9, 6, 3, 1]


def test_several_local_steps_cost_what_is_proved_not_what_is_claimed(simulation):
    assert make_scheme("udp", local_steps=2).run(simulation).broken == 0
    claimed = make_scheme("udp", "formula", local_steps=2).run(simulation)
    assert claimed.broken == len(simulation)
    assert claimed.largest_share > 10
