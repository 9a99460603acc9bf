# SPDX-License-Identifier: Apache-2.0
"""Composition: never below the truth, close to it, and mutants that would be caught."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting import _composition as composition
from dpcohort.accounting import gaussian_delta
from dpcohort.accounting._composition import (
    LossPair,
    chernoff_epsilon,
    grid_delta,
    grid_epsilon,
    loss_at,
)

KINDS = ["remove", "add", "replace", "fixed"]
CASES = [(1.0, 0.2, 30), (0.2, 0.5, 400), (0.6, 0.05, 200), (1.5, 0.5, 40), (0.05, 0.21, 1000)]


def exact_delta(pair, steps, epsilon):
    """δ(ε) as a contour integral of the moment function, by quadrature (an oracle)."""
    nodes, weights = np.polynomial.legendre.leggauss(240)
    if pair.kind == "fixed":
        low, high = pair.shift / 2, pair.shift + 12.0
    else:
        low, high = -12.0, pair.shift + 12.0
    x = low + (high - low) * (nodes + 1) / 2
    weights = weights * (high - low) / 2 / math.sqrt(2 * math.pi)
    base, moved = np.exp(-(x**2) / 2), np.exp(-((x - pair.shift) ** 2) / 2)
    loss = loss_at(pair, x)
    p = weights * (base if pair.kind == "add" else (1 - pair.rate) * base + pair.rate * moved)
    if pair.kind == "fixed":
        q = weights * base
        loss, p = np.r_[-loss, 0.0, loss], np.r_[q, 1 - q.sum() - p.sum(), p]

    def log_integrand(t):
        moment = np.exp(np.multiply.outer(t, loss)) @ p
        return steps * np.log(moment) - epsilon * t - np.log(t * (1 + t))

    real = np.geomspace(1e-3, 300, 300)
    with np.errstate(over="ignore", invalid="ignore"):
        heights = np.nan_to_num(log_integrand(real), nan=np.inf)
    saddle = real[np.argmin(heights)]
    bend = 1e-3 * saddle
    around = log_integrand(np.array([saddle - bend, saddle, saddle + bend]))
    width = 1 / math.sqrt((around[0] - 2 * around[1] + around[2]) / bend**2)
    spacing = width / 12
    path = saddle + 1j * spacing * np.arange(0, 300)
    values = np.exp(log_integrand(path))
    assert abs(values[-1]) < 1e-9 * abs(values[0])
    return spacing / math.pi * (values.real.sum() - values[0].real / 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shift", "rate", "steps"), CASES)
def test_never_below_the_truth_and_close_to_it(kind, shift, rate, steps):
    pair = LossPair(kind=kind, shift=shift, rate=rate)
    for delta in (1e-3, 1e-6, 1e-10):
        near_the_truth(pair, steps, delta)


def near_the_truth(pair, steps, delta):
    epsilon = grid_epsilon([(pair, steps)], delta)
    truth = exact_delta(pair, steps, epsilon)
    assert truth < delta
    assert exact_delta(pair, steps, epsilon * (1 - 5e-4)) > delta
    assert truth < grid_delta([(pair, steps)], epsilon) < 1.1 * truth


@pytest.mark.parametrize(
    ("mu", "delta"), [(0.1, 0.05), (1.0, 0.05), (0.1, 1e-5), (1.0, 1e-12), (5.0, 1e-200)]
)
def test_gaussian_in_closed_form(mu, delta):
    pair = LossPair(kind="remove", shift=mu / 4, rate=1.0)
    epsilon = grid_epsilon([(pair, 16)], delta)
    assert gaussian_delta(epsilon=epsilon, mu=mu) < delta
    if gaussian_delta(epsilon=0.0, mu=mu) < delta:
        assert epsilon == 0
    else:
        assert gaussian_delta(epsilon=0.9995 * epsilon, mu=mu) > delta


def test_different_steps_compose():
    first, second = (
        LossPair(kind="remove", shift=0.4, rate=1.0),
        LossPair(kind="remove", shift=0.3, rate=1.0),
    )
    mu = math.sqrt(9 * 0.4**2 + 16 * 0.3**2)
    mixed = [(first, 9), (second, 16)]
    truth = gaussian_delta(epsilon=3.0, mu=mu)
    assert truth < grid_delta(mixed, 3.0) < 1.01 * truth
    assert grid_epsilon(mixed, 1e-5) == pytest.approx(grid_epsilon(mixed[::-1], 1e-5), rel=1e-9)


def test_large_tails_are_charged_and_a_mutant_that_drops_them_is_seen(monkeypatch):
    pair = LossPair(kind="remove", shift=1.0, rate=0.2)
    delta = grid_delta([(pair, 30)], 4.0)
    truth = exact_delta(pair, 30, 4.0)
    exact = LossPair.on_grid

    def cut(self, step, *, tail, lowest):  # far into the bulk of the tail
        return exact(self, step, tail=3e15 * tail, lowest=lowest)

    monkeypatch.setattr(LossPair, "on_grid", cut)
    charged = grid_delta([(pair, 30)], 4.0)
    assert charged > delta > truth
    monkeypatch.setattr(composition, "beyond_grid", lambda steps: (0.0, 0.0))
    assert grid_delta([(pair, 30)], 4.0) < truth


def test_a_window_that_is_too_small_still_gives_an_upper_bound(monkeypatch):
    pair = LossPair(kind="remove", shift=1.0, rate=0.2)
    truth = exact_delta(pair, 30, 4.0)
    wide = composition.grid_for

    def narrow(sketch, target, **options):
        return wide(sketch, target, **options)._replace(low=3.5, length=1.5)

    monkeypatch.setattr(composition, "grid_for", narrow)
    assert truth < grid_delta([(pair, 30)], 4.0) <= 1.0
    epsilon = grid_epsilon([(pair, 30)], 1e-4)
    assert exact_delta(pair, 30, epsilon) < 1e-4


def test_an_output_that_tells_all_has_no_epsilon_below_its_odds():
    bound = (1.0, 0.0, 0.25, 0.0)  # a quarter of the cases are told apart
    assert chernoff_epsilon(bound, 0.25) == math.inf
    assert chernoff_epsilon(bound, 0.26) < math.inf
