# SPDX-License-Identifier: Apache-2.0
"""A slow reference for Problem 1 in 60 digits that proves its own optimality, and instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
from mpmath import mpf


@dataclass(frozen=True)
class Instance:
    """One instance of Problem 1; the unset parts are None as in ``solve_selection``."""

    u: np.ndarray
    a: np.ndarray
    b: np.ndarray | None = None
    floor: np.ndarray | None = None
    cap: np.ndarray | None = None
    g0: float = 0.0

    @property
    def options(self) -> dict:
        return {
            "linear_costs": self.b,
            "floor": self.floor,
            "cap": self.cap,
            "clipping_gap": self.g0,
        }


@dataclass(frozen=True)
class Reference:
    objective: mpf
    probabilities: list
    proof: mpf  # proved upper bound on objective - optimum


class _Exact:
    """The instance in exact numbers; infinite costs have become caps at 0."""

    def __init__(self, instance: Instance) -> None:
        n = instance.u.size
        zeros, ones = np.zeros(n), np.ones(n)
        self.u = [mpf(float(x)) for x in instance.u]
        a = [mpf(float(x)) for x in instance.a]
        b = [mpf(float(x)) / 2 for x in (zeros if instance.b is None else instance.b)]
        self.low = [mpf(float(x)) for x in (zeros if instance.floor is None else instance.floor)]
        cap = ones if instance.cap is None else np.minimum(instance.cap, 1.0)
        self.high = [mpf(float(x)) for x in cap]
        for k in range(n):
            if mpmath.isinf(a[k]) or mpmath.isinf(b[k]):
                a[k], b[k], self.high[k] = mpf(0), mpf(0), self.low[k]
        self.a, self.b, self.g0 = a, b, mpf(instance.g0)

    def parts(self, p: list) -> tuple[mpf, mpf]:
        bias = self.g0 + mpmath.fsum(abs(x - y) for x, y in zip(p, self.u, strict=True))
        noise = mpmath.fsum(
            a * x * x + 2 * b * x for a, b, x in zip(self.a, self.b, p, strict=True)
        )
        return bias, noise

    def objective(self, p: list) -> mpf:
        bias, noise = self.parts(p)
        return bias + mpmath.sqrt(bias * bias + noise)

    def best(self, k: int, x: mpf, f: mpf, *, upper: bool) -> mpf:
        """The minimiser of client k's part at price x (the largest or smallest one, if several)."""
        a, b, u, y = self.a[k], self.b[k], self.u[k], x + 2 * f
        if a > 0:
            value = min(max(u, (x - b) / a), (y - b) / a)
        elif upper:
            value = mpf(2) if x >= b else (u if y >= b else mpf(-1))
        else:
            value = mpf(2) if x > b else (u if y > b else mpf(-1))
        return min(max(value, self.low[k]), self.high[k])

    def fill(self, f: mpf) -> tuple[list, mpf]:
        """Minimises Q + 2 f G exactly: walks over all prices at which something changes."""
        n = len(self.u)
        prices = set()
        for k in range(n):
            for value in (self.low[k], self.u[k], self.high[k]):
                marginal = self.a[k] * value + self.b[k]
                prices |= {marginal, marginal - 2 * f}
        ordered = sorted(prices)
        first, last = 0, len(ordered) - 1
        while first < last:  # the first price whose largest total reaches 1
            middle = (first + last) // 2
            total = mpmath.fsum(self.best(k, ordered[middle], f, upper=True) for k in range(n))
            first, last = (first, middle) if total >= 1 else (middle + 1, last)
        x = ordered[first]
        top = [self.best(k, x, f, upper=True) for k in range(n)]
        bottom = [self.best(k, x, f, upper=False) for k in range(n)]
        if mpmath.fsum(bottom) > 1 and first > 0:
            top, x_top = bottom, x
            x = ordered[first - 1]
            bottom = [self.best(k, x, f, upper=True) for k in range(n)]
        else:
            x_top = x
        high, low = mpmath.fsum(top), mpmath.fsum(bottom)
        weight = (1 - low) / (high - low) if high > low else mpf(1)
        p = [s + weight * (t - s) for s, t in zip(bottom, top, strict=True)]
        return p, x + weight * (x_top - x)

    def proof(self, p: list, x: mpf, objective: mpf) -> mpf:
        """Objective minus a dual lower bound, from the Lagrangian at f = F(p)."""
        if objective == 0:
            return mpf(0)
        f, nu = objective, x + objective
        bias, noise = self.parts(p)
        dual = 2 * nu + 2 * f * self.g0
        for k in range(len(p)):
            q = self.best(k, x, f, upper=True)
            dual += self.a[k] * q * q + 2 * self.b[k] * q + 2 * f * abs(q - self.u[k]) - 2 * nu * q
        return (noise + 2 * f * bias - dual) / f


def exact_optimum(instance: Instance) -> Reference:
    with mpmath.workdps(60):
        exact = _Exact(instance)
        f = mpf(1)
        for _ in range(200):
            p, x = exact.fill(f)
            value = exact.objective(p)
            if abs(value - f) <= mpf(10) ** -50 * (1 + f) or value == 0:
                break
            f = value
        return Reference(value, p, exact.proof(p, x, value))


def random_instance(rng: np.random.Generator, *, bounded: bool = False) -> Instance:
    """A small instance with everything that can go wrong: zeros, infinities, ties, u = 0."""
    n = int(rng.integers(1, 9))
    u = rng.dirichlet(np.full(n, rng.choice([0.3, 1.0, 10.0])))
    width = rng.choice([1.0, 3.0, 6.0, 12.0])
    a = 10.0 ** (rng.uniform(-width, width, n) + rng.choice([0.0, 3.0]))
    if rng.random() < 0.3:
        a[rng.random(n) < 0.4] = 0.0
    if rng.random() < 0.3:
        a[rng.random(n) < 0.3] = np.inf
    if rng.random() < 0.3:
        a[:] = rng.choice(a, n)
        u = np.full(n, 1.0 / n)
    if rng.random() < 0.3 and n > 1:
        u[rng.random(n) < 0.4] = 0.0
        u = u / u.sum() if u.sum() > 0 else np.full(n, 1.0 / n)
    if np.isinf(a).all():
        a[0] = 1.0
    g0 = float(rng.choice([0.0, 0.0, 0.3]))
    if not bounded:
        return Instance(u, a, g0=g0)
    b = floor = cap = None
    if rng.random() < 0.7:
        b = a * rng.choice([1e-3, 0.1, 10.0]) if rng.random() < 0.5 else rng.random(n) * 10
        b = np.where(np.isinf(a), 0.0, b)
    if rng.random() < 0.5:
        floor = u * rng.random() if rng.random() < 0.5 else rng.dirichlet(np.ones(n)) * rng.random()
        floor = np.where(np.isinf(a), 0.0, floor)
    if rng.random() < 0.5:
        cap = np.maximum(rng.random(n), 0.0 if floor is None else floor)
        reachable = np.where(np.isinf(a), 0.0, cap).sum()
        cap = cap * max(1.0, 1.2 / max(reachable, 1e-3))
        if np.where(np.isinf(a), 0.0, cap).sum() < 1.05:
            cap = None
    return Instance(u, a, b, floor, cap, g0)


@pytest.fixture(scope="session")
def optimum() -> Callable[[Instance], Reference]:
    """The reference solver."""
    return exact_optimum


@pytest.fixture(scope="session")
def instance() -> Callable[..., Instance]:
    """A maker of random instances."""
    return random_instance
