# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.selection.eta import estimate_smoothness, resolve_eta


def test_auto_is_the_weight_of_theorem_two():
    """Theorem 2 adds 2 L sqrt(T) sum p^2 D V under the root."""
    assert resolve_eta("auto", total_steps=400, smoothness=0.5) == 20.0
    assert resolve_eta(3, total_steps=400, smoothness=0.5) == 3.0
    assert resolve_eta(0.0, total_steps=1, smoothness=1.0) == 0.0


@pytest.mark.parametrize("eta", ["Auto", "", -1.0, math.nan, math.inf, None, True])
def test_anything_else_is_refused(eta):
    with pytest.raises(InputError, match="eta"):
        resolve_eta(eta, total_steps=1, smoothness=1.0)


@pytest.mark.parametrize(("steps", "smoothness"), [(0, 1.0), (1.5, 1.0), (1, 0.0), (1, math.nan)])
def test_auto_needs_steps_and_smoothness(steps, smoothness):
    with pytest.raises(InputError):
        resolve_eta("auto", total_steps=steps, smoothness=smoothness)


def test_a_quadratic_shows_its_largest_curvature_and_no_more():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        factor = rng.standard_normal((30, 30))
        hessian = factor @ factor.T
        largest = float(np.linalg.eigvalsh(hessian)[-1])
        found = estimate_smoothness(
            lambda w, hessian=hessian: hessian @ w, np.ones(30), radius=2.0, samples=10, rng=rng
        )
        assert found <= largest * (1 + 1e-6)
        assert found >= 0.97 * largest


def test_a_logistic_loss_stays_below_its_bound():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 5))
    y = rng.integers(0, 2, 200)
    bound = 0.25 * float(np.linalg.eigvalsh(x.T @ x / 200)[-1])

    def gradient(w):
        return x.T @ (1 / (1 + np.exp(-x @ w)) - y) / 200

    found = estimate_smoothness(gradient, np.zeros(5), radius=0.5, samples=20, rng=rng)
    assert 0.7 * bound < found <= bound * (1 + 1e-6)


def test_same_generator_same_estimate_and_flat_is_zero():
    def gradient(w):
        return np.sin(w)

    one, two = (
        estimate_smoothness(
            gradient, np.zeros(4), radius=1.0, samples=5, rng=np.random.default_rng(7)
        )
        for _ in range(2)
    )
    assert one == two
    flat = estimate_smoothness(
        lambda w: np.ones(3), np.zeros(3), radius=1.0, samples=3, rng=np.random.default_rng(0)
    )
    assert flat == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": []}, "start"),
        ({"start": [[1.0]]}, "start"),
        ({"start": [math.nan]}, r"start\[0\]"),
        ({"radius": 0.0}, "radius"),
        ({"samples": 0}, "samples"),
        ({"gradient": lambda w: np.array([math.nan, 1.0])}, r"gradient\(w\)\[0\]"),
        ({"gradient": lambda w: np.ones(3)}, "shape of gradient"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"gradient": lambda w: w, "start": np.zeros(2), "radius": 1.0, "samples": 2, **change}
    gradient, start = given.pop("gradient"), given.pop("start")
    with pytest.raises(InputError, match=message):
        estimate_smoothness(gradient, start, rng=np.random.default_rng(0), **given)
