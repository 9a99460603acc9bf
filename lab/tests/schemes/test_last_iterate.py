# SPDX-License-Identifier: Apache-2.0
"""The contraction bound against laws on a line, integrated directly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpcohort.accounting import gaussian_delta
from dpcohort.errors import InputError
from dpcohort_lab.schemes.last_iterate import LastIterate, contracted

SETTING = {"noise_multiplier": 3.0, "batch_size": 4, "steps": 5, "clip": 1.0, "step_size": 0.3}


def step_law(law, points, edges, *, gradient, alpha, spread):
    """One projected noisy step on the cells of [-R, R]; what falls outside goes to the ends."""
    centres = points - alpha * gradient(points)
    upper = ndtr((edges[None, 1:] - centres[:, None]) / spread)
    lower = ndtr((edges[None, :-1] - centres[:, None]) / spread)
    kernel = upper - lower
    kernel[:, 0] = upper[:, 0]
    kernel[:, -1] = 1 - lower[:, -1]
    return law @ kernel


def last_laws(accountant, changed, slopes, cells=400):
    """Laws of the last iterate with and without a change in one step's batch.

    Step t has gradient clip(slope_t w) in both worlds, plus +C/B or -C/B in step ``changed``: the
    furthest that replacing a record can move the mean.
    """
    radius, clip = accountant.radius, accountant.clip
    edges = np.linspace(-radius, radius, cells + 1)
    points = 0.5 * (edges[1:] + edges[:-1])
    alpha = accountant.step_size
    spread = alpha * accountant.noise_multiplier * clip / accountant.batch_size
    start = np.zeros(cells)
    start[cells // 2] = 1.0
    laws = []
    for side in (1.0, -1.0):
        law = start
        for t, slope in enumerate(slopes):
            push = side * clip / accountant.batch_size if t == changed else 0.0

            def gradient(w, slope=slope, push=push):
                room = clip * (1 - 1 / accountant.batch_size)
                return np.clip(slope * w, -room, room) + push

            law = step_law(law, points, edges, gradient=gradient, alpha=alpha, spread=spread)
        laws.append(law)
    return laws


def hockey_stick(first, second, epsilon):
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize("radius", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("changed", [0, 2, 4])
@pytest.mark.parametrize(
    "slopes", [(0, 0, 0, 0, 0), (1, 2, -1, 0.5, 3), (-3, -3, -3, -3, -3)], ids=str
)
def test_the_bound_covers_the_true_divergence_on_a_line(radius, changed, slopes):
    accountant = LastIterate(radius=radius, **SETTING)
    laws = last_laws(accountant, changed, slopes)
    for epsilon in (0.0, 0.1, 0.4, 1.0):
        eps = np.array([epsilon])
        bounds = []
        for sharp in (True, False):
            bound = gaussian_delta(epsilon=eps, mu=2 / accountant.noise_multiplier)
            for _ in range(len(slopes) - 1 - changed):
                bound = contracted(bound, epsilon=eps, distance=accountant.distance, sharp=sharp)
            bounds.append(float(bound[0]))
        true = max(hockey_stick(*laws, epsilon), hockey_stick(*laws[::-1], epsilon))
        assert true <= bounds[0] + 1e-12
        assert bounds[0] <= bounds[1] + 1e-12


def test_a_pass_is_the_mean_over_the_places_of_a_record():
    accountant = LastIterate(radius=0.1, **SETTING)
    eps = np.array([0.2])
    places = [gaussian_delta(epsilon=eps, mu=2 / 3)]
    for _ in range(4):
        places.append(contracted(places[-1], epsilon=eps, distance=accountant.distance))
    assert accountant.delta(eps)[0] == pytest.approx(float(np.mean(places)))


def test_hiding_helps_never_hurts_and_composes():
    for radius in (0.05, 1.0, 100.0):
        accountant = LastIterate(radius=radius, **SETTING)
        for passes in (1, 8):
            sharp = accountant.epsilon(1e-5, passes=passes)
            plain = accountant.epsilon(1e-5, passes=passes, sharp=False)
            assert (
                0
                < sharp
                <= plain * 1.001
                <= accountant.released_epsilon(1e-5, passes=passes) * 1.002
            )
    close = LastIterate(radius=0.05, **SETTING)
    longer = LastIterate(radius=0.05, **{**SETTING, "steps": 60})
    assert longer.epsilon(1e-5) < close.epsilon(1e-5) < 0.95 * close.released_epsilon(1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"radius": None}, "not projected"),
        ({"hides_iterates": False}, "intermediate models are released"),
        ({"each_record_once": False}, "several steps of a pass"),
    ],
    ids=["unbounded", "released", "reused"],
)
def test_it_refuses_where_an_assumption_fails_and_says_which(change, reason):
    accountant = LastIterate(**{"radius": 1.0, **SETTING, **change})
    assert reason in accountant.objections()[0]
    with pytest.raises(InputError, match=reason):
        accountant.epsilon(1e-5)
    with pytest.raises(InputError, match="released_epsilon"):
        accountant.delta(np.array([0.1]))
    assert accountant.released_epsilon(1e-5) > 0
