# SPDX-License-Identifier: Apache-2.0
"""Theorems 1 and 2 against the printed formulas, the inequalities of their proofs, and runs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort_lab import theorems
from dpcohort_lab.theorems import BalanceCurve, Constants, best_balance, error_terms

SEEDS = range(3)


def of_selection(bound):
    """The bound of a selection; ``how`` is what the bound takes besides."""

    def told(constants, *, how=("total_steps", "balance", "as_printed"), **given):
        rest = {key: given.pop(key) for key in how if key in given}
        return bound(constants, error_terms(constants, **given), **rest)

    return told


nonconvex_bound = of_selection(theorems.nonconvex_bound)
strongly_convex_bound = of_selection(theorems.strongly_convex_bound)
strongly_convex_limit = partial(strongly_convex_bound, total_steps=math.inf)


def instance(seed: int) -> tuple[Constants, dict[str, Any]]:
    """A selection, and constants that some objective can have (C <= B1, the gap as implied)."""
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(1, 8))
    smoothness = float(10 ** rng.uniform(-1, 1))
    mu = smoothness * float(rng.uniform(0.05, 1))
    bound = float(10 ** rng.uniform(-1, 1))
    clip = bound * float(rng.uniform(0.1, 1))
    constants = Constants(
        smoothness=smoothness,
        gradient_bound=bound,
        clip=clip,
        initial_gap=bound**2 / (2 * mu) * float(rng.uniform(0, 1)),
        strong_convexity=mu,
        initial_distance=bound / mu * float(rng.uniform(0, 1)),
        dissimilarity=float(rng.uniform(0, 0.2)) * clip,
        clipping_gap=float(rng.uniform(0, 0.5)),
        biased_clipping_gap=float(rng.uniform(0, 0.5)),
        step_scale=bound / (clip * mu) * float(rng.uniform(1.01, 3)),
        step_offset=float(rng.uniform(1, 20)),
    )
    selection: dict[str, Any] = {
        "probabilities": rng.dirichlet(np.ones(clients)),
        "unbiased": rng.dirichlet(np.ones(clients)),
        "noise_levels": 10 ** rng.uniform(-8, -1, clients) * (rng.random(clients) > 0.2),
        "dimension": int(rng.integers(1, 2000)),
    }
    return constants, selection


def printed_terms(constants: Constants, selection: dict[str, Any]) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """G^select,clip, G^DP, G^b,clip from their definitions, in 50 digits."""
    p, u, v = (
        [mp.mpf(float(x)) for x in selection[k]]
        for k in ("probabilities", "unbiased", "noise_levels")
    )
    drift = mp.mpf(constants.dissimilarity) / constants.clip
    chosen = mp.fsum(abs(a - b) for a, b in zip(p, u, strict=True)) + constants.clipping_gap + drift
    noise = mp.fsum(a**2 * selection["dimension"] * b for a, b in zip(p, v, strict=True))
    return chosen, noise, constants.biased_clipping_gap + drift


def quadratic(
    constants: Constants, selection: dict[str, Any], steps: int, balance: mp.mpf
) -> tuple[mp.mpf, mp.mpf]:
    """b and c of y^2 <= b y + c: the inequality (equ: quad), term by term as printed."""
    g, noise, biased = printed_terms(constants, selection)
    smooth, mu, c = map(mp.mpf, (constants.smoothness, constants.strong_convexity, constants.clip))
    beta, gamma, b1 = map(
        mp.mpf, (constants.step_scale, constants.step_offset, constants.gradient_bound)
    )
    d = mp.mpf(constants.initial_distance)
    sum_ = gamma + steps
    linear = beta * steps / sum_ * mp.sqrt(2 * smooth) * g * c
    ratio = beta**2 * steps**2 * smooth / sum_**2
    rest = gamma / sum_ * constants.initial_gap
    rest += (
        ratio
        / 2
        * 9
        * balance
        * (
            sum_ / (beta**2 * steps**2) * gamma * d**2
            + noise * c**2
            + c**2 / steps
            + 2 * b1 * sum_ / (beta * steps * mu) * biased * c
        )
    )
    rest += ratio / 2 * noise * c**2 + beta**2 * steps / sum_**2 * smooth * c**2 / 2
    rest += ratio / 2 / balance * g**2 * c**2
    return linear, rest


@pytest.mark.parametrize("seed", SEEDS)
def test_theorem_1_as_printed_in_fifty_digits(seed: int) -> None:
    constants, selection = instance(seed)
    steps, big = 1 + seed * 37, 0.1 + seed
    ours = strongly_convex_bound(
        constants, **selection, total_steps=steps, balance=big, as_printed=True
    )
    with mp.workdps(50):
        g, noise, biased = printed_terms(constants, selection)
        smooth, mu = mp.mpf(constants.smoothness), mp.mpf(constants.strong_convexity)
        beta, gamma = mp.mpf(constants.step_scale), mp.mpf(constants.step_offset)
        c, b1, weight = mp.mpf(constants.clip), mp.mpf(constants.gradient_bound), mp.mpf(big)
        z = mp.sqrt(
            mp.mpf(9) / 2 * smooth * weight * gamma * mp.mpf(constants.initial_distance) ** 2
            + (1 + 9 * weight) / 2 * beta**2 * steps * smooth / (gamma + steps) * c**2
            + gamma * constants.initial_gap
        )
        clipping = mp.sqrt(
            18 * weight * beta * steps * smooth / (gamma + steps) * b1 * c / mu * biased
        )
        mixed = mp.sqrt(2 * smooth) * beta * steps * c / (2 * (gamma + steps))
        mixed *= g + mp.sqrt((1 + 1 / weight) * g**2 + (1 + 9 * weight) * noise)
        vanishing = z / mp.sqrt(gamma + steps)
    assert ours.initial_error == pytest.approx(float(z), rel=1e-13)
    assert ours.vanishing == pytest.approx(float(vanishing), rel=1e-13)
    assert ours.clipping == pytest.approx(float(clipping), rel=1e-13)
    assert ours.selection_and_privacy == pytest.approx(float(mixed), rel=1e-13)
    assert ours.total == pytest.approx(float(vanishing + clipping + mixed), rel=1e-13)
    assert ours.non_vanishing == pytest.approx(float(clipping + mixed), rel=1e-13)
    assert ours.squared_total == pytest.approx(ours.total**2, rel=1e-15)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_proofs_quadratic_gives_nine_gamma_where_eighteen_is_printed(seed: int) -> None:
    constants, selection = instance(seed)
    constants = replace(constants, biased_clipping_gap=constants.biased_clipping_gap + 0.1)
    steps, balance = 5 + seed * 11, 0.2 + 0.3 * seed
    ours = strongly_convex_bound(constants, **selection, total_steps=steps, balance=balance)
    printed = strongly_convex_bound(
        constants, **selection, total_steps=steps, balance=balance, as_printed=True
    )
    with mp.workdps(50):
        linear, rest = quadratic(constants, selection, steps, mp.mpf(balance))
        # G^b,clip enters the quadratic only through its clipping term.
        with_drift = replace(constants, biased_clipping_gap=0.0)
        clipping = rest - quadratic(with_drift, selection, steps, mp.mpf(balance))[1]
        share = constants.biased_clipping_gap / ours.errors.biased_clipping_error
        root = linear / 2 + mp.sqrt(linear**2 / 4 + rest)
    assert ours.clipping**2 * share == pytest.approx(float(clipping), rel=1e-12)
    assert printed.clipping == pytest.approx(math.sqrt(2) * ours.clipping, rel=1e-14)
    assert float(root) <= ours.total < printed.total


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sharper_total_is_the_least_root_of_the_quadratic(seed: int) -> None:
    constants, selection = instance(seed)
    ours = strongly_convex_bound(constants, **selection, total_steps=50)
    roots = []
    for balance in np.geomspace(1e-4, 1e4, 300):
        with mp.workdps(30):
            linear, rest = quadratic(constants, selection, 50, mp.mpf(float(balance)))
            roots.append(float(linear / 2 + mp.sqrt(linear**2 / 4 + rest)))
    assert ours.sharper_total <= min(roots) * (1 + 1e-12)
    assert ours.sharper_total == pytest.approx(min(roots), rel=1e-3)
    assert ours.sharper_total <= ours.total


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("balance", [None, 0.7])
def test_theorem_1_tends_to_corollary_1(seed: int, balance: float | None) -> None:
    constants, selection = instance(seed)
    limit = strongly_convex_limit(constants, **selection, balance=balance)
    far = [
        strongly_convex_bound(constants, **selection, total_steps=10**k, balance=balance).total
        for k in (8, 12, 16)
    ]
    gaps = [abs(value - limit.total) for value in far]
    assert gaps[0] > gaps[1] > gaps[2]
    assert far[2] == pytest.approx(limit.total, rel=1e-5)
    assert limit.vanishing == 0.0
    assert math.isinf(limit.total_steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_theorem_2_as_printed_in_fifty_digits(seed: int) -> None:
    constants, selection = instance(seed)
    steps = 1 + 53 * seed
    ours = nonconvex_bound(constants, **selection, total_steps=steps)
    with mp.workdps(50):
        g, noise, _ = printed_terms(constants, selection)
        smooth, b1 = mp.mpf(constants.smoothness), mp.mpf(constants.gradient_bound)
        root = mp.sqrt(steps)
        stays = b1 / 2 * (g + mp.sqrt(g**2 + 2 * noise * root * smooth))
        goes = mp.sqrt(constants.initial_gap / root + smooth * b1**2 / (2 * root))
        # (equ: quadratic) with alpha = B1 / (C sqrt(T)) and E||n||^2 = T G^DP C^2.
        alpha, c = b1 / constants.clip / root, mp.mpf(constants.clip)
        rest = constants.initial_gap / root + root * alpha**2 * smooth / 2 * (
            c**2 + steps * noise * c**2
        )
        quadratic_root = (g * b1 + mp.sqrt((g * b1) ** 2 + 4 * rest)) / 2
    assert ours.non_vanishing == pytest.approx(float(stays), rel=1e-13)
    assert ours.vanishing == pytest.approx(float(goes), rel=1e-13)
    assert ours.total == pytest.approx(float(stays + goes), rel=1e-13)
    assert ours.step_size == pytest.approx(float(alpha), rel=1e-13)
    assert ours.sharper_total == pytest.approx(float(quadratic_root), rel=1e-13)
    assert ours.sharper_total <= ours.total
    assert ours == nonconvex_bound(constants, **selection, total_steps=steps, as_printed=True)


def huber_gradient(w: float) -> float:
    """Gradient of w^2/2 for |w| <= 1 and |w| - 1/2 beyond: L = 1, B1 = 1."""
    return max(-1.0, min(1.0, w))


@pytest.mark.parametrize(("as_printed", "holds"), [(True, False), (False, True)])
def test_printed_theorem_2_fails_for_a_clip_above_the_gradient_bound(
    as_printed: bool, holds: bool
) -> None:
    """One public client, no clipping, no noise, no bias: plain gradient descent refutes it."""
    start, steps = 6.5, 100
    constants = Constants(smoothness=1, gradient_bound=1, clip=2, initial_gap=start - 0.5)
    bound = nonconvex_bound(
        constants,
        probabilities=[1.0],
        unbiased=[1.0],
        noise_levels=[0.0],
        dimension=1,
        total_steps=steps,
        as_printed=as_printed,
    )
    w, squares = start, 0.0
    for _ in range(steps):
        squares += huber_gradient(w) ** 2
        w -= bound.step_size * huber_gradient(w)
    assert (math.sqrt(squares / steps) <= bound.total) == holds


PUBLIC: dict[str, Any] = {
    "probabilities": [1.0],
    "unbiased": [1.0],
    "noise_levels": [0.0],
    "dimension": 10,
}


def test_theorem_2_is_vacuous_exactly_when_it_reaches_the_gradient_bound() -> None:
    constants = Constants(smoothness=1, gradient_bound=1, clip=1, initial_gap=0.5)
    at_the_edge = nonconvex_bound(constants, **PUBLIC, total_steps=1)  # sqrt((0.5 + 0.5) / 1)
    assert at_the_edge.total == 1.0
    assert at_the_edge.vacuous
    assert at_the_edge.sentence.startswith("This bound says nothing.")
    later = nonconvex_bound(constants, **PUBLIC, total_steps=2)
    assert not later.vacuous
    assert "at most 0.8409" in later.sentence


def test_theorem_1_is_vacuous_when_the_assumptions_alone_say_more() -> None:
    constants = Constants(
        smoothness=1, gradient_bound=1, clip=1, initial_gap=0.1, strong_convexity=1
    )
    early = strongly_convex_bound(constants, **PUBLIC, total_steps=1)
    assert early.trivial == 0.5
    assert (early.squared_total, early.vacuous) == (pytest.approx(0.175), False)
    assert "does not show that training helps" in early.sentence
    late = strongly_convex_bound(constants, **PUBLIC, total_steps=1000)
    assert late.squared_total < 0.1
    assert late.sentence.endswith("it started within 0.1.")
    biased = replace(constants, clipping_gap=0.5)
    said = strongly_convex_limit(biased, **PUBLIC)
    assert said.vacuous
    assert said.sentence.startswith("This bound says nothing. In the limit")


@pytest.mark.parametrize("steps", [0, 1.5])
def test_steps_that_cannot_be_counted_are_refused(steps: object) -> None:
    constants, selection = instance(1)
    for bound in (strongly_convex_bound, nonconvex_bound):
        with pytest.raises(InputError, match="total_steps"):
            bound(constants, **selection, total_steps=steps)


@pytest.mark.parametrize("balance", [0.0, math.inf])
def test_a_given_gamma_must_be_positive(balance: float) -> None:
    constants, selection = instance(1)
    with pytest.raises(InputError, match="balance"):
        strongly_convex_bound(constants, **selection, total_steps=5, balance=balance)


FIELDS = ("start", "start_growth", "clipping_growth", "steady", "selection_decay", "noise_growth")


def random_curve(rng: np.random.Generator) -> BalanceCurve:
    values = 10.0 ** rng.uniform(-6, 6, size=6) * (rng.random(6) > 0.2)
    return BalanceCurve(**dict(zip(FIELDS, map(float, values), strict=True)))


@pytest.mark.parametrize("seed", range(8))
def test_the_best_balance_is_never_beaten_on_a_fine_grid(seed: int) -> None:
    curve = random_curve(np.random.default_rng(seed))
    balance, least = best_balance(curve)
    grid = [curve.value(balance) for balance in np.geomspace(1e-14, 1e14, 4001).tolist()]
    assert least <= min(grid)
    assert curve.value(balance) <= min(grid) * (1 + 1e-13)
    assert 0 <= curve.value(balance) - least <= 1e-12 * curve.value(balance)


def test_limits_are_taken_in_closed_form() -> None:
    rising = BalanceCurve(
        start=4, start_growth=1, clipping_growth=1, steady=9, selection_decay=0, noise_growth=1
    )
    assert best_balance(rising) == (0.0, pytest.approx(5.0, rel=1e-13))
    falling = BalanceCurve(
        start=4, start_growth=0, clipping_growth=0, steady=9, selection_decay=2, noise_growth=0
    )
    assert best_balance(falling) == (math.inf, pytest.approx(5.0, rel=1e-13))
    assert (rising.value(0.0), falling.value(math.inf)) == (5.0, 5.0)


def test_a_minimum_beyond_the_searched_range_keeps_an_honest_lower_bound() -> None:
    curve = BalanceCurve(
        start=1,
        start_growth=1e-200,
        clipping_growth=0,
        steady=1,
        selection_decay=1e100,
        noise_growth=0,
    )
    balance, least = best_balance(curve)
    assert least == pytest.approx(2.0, rel=1e-12)
    assert least <= curve.value(1e150) <= curve.value(balance)
