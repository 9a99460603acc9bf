# SPDX-License-Identifier: Apache-2.0
"""The solver for distributed noise against CVXPY with CLARABEL, and alone up to a million clients.

Run ``python benchmarks/distributed_solver.py`` (a few minutes): 1,000 random instances, with and
without linear costs, public clients, floors, caps and everybody in every cohort. CVXPY's weights
are clipped and scaled to sum to 1, and its objective is that of these weights. Then the time of the
solver alone, processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.selection import Pool, solve_distributed
from dpcohort.selection._instance import Costs


@dataclass(frozen=True)
class Instance:
    """A random instance."""

    u: FloatArray
    a: FloatArray
    b: FloatArray
    floor: FloatArray
    cap: FloatArray
    members: int
    honest: int

    @property
    def options(self) -> dict[str, Any]:
        """What the solver takes beside u, a, K and h."""
        bounded = {"floor": self.floor, "cap": self.cap} if self.floor.any() else {}
        return {**bounded, "linear_costs": self.b if self.b.any() else None}

    @property
    def costs(self) -> Costs:
        """U and costs."""
        return Costs(self.u, self.a, self.b)


def instance(seed: int) -> Instance:
    """An instance of 2 to 40 clients."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 41))
    members = n if seed % 4 == 0 else int(rng.integers(2, n + 1))
    honest = int(rng.integers(2, members + 1))
    u = rng.dirichlet(np.full(n, 10.0 ** rng.uniform(-0.5, 1)))
    a = n * 10.0 ** rng.uniform(-2, 3, n)
    b = 10.0 ** rng.uniform(-4, 1) * 10.0 ** rng.uniform(-1, 1, n)
    if seed % 2 == 0:
        b = np.zeros(n)
    if seed % 3 == 0:
        public = rng.random(n) < 0.1
        a, b = np.where(public, 0.0, a), np.where(public, 0.0, b)
    floor, cap = np.zeros(n), np.ones(n)
    if seed % 5 == 0:
        floor, cap = 0.2 * u, np.minimum(1.5 * u + 0.5 / n, 1.0)
    return Instance(u, a, b, floor, cap, members, honest)


def conic_weights(one: Instance) -> FloatArray:
    """What CVXPY finds: 2 L q(w / L) is ``a w^2 / L + |(a w^2 / L, 2 sqrt(b) w)|``."""
    cvxpy: Any = importlib.import_module("cvxpy")  # its functions carry no types
    n = one.u.size
    w, square, level, bias = (cvxpy.Variable(*shape) for shape in ((n,), (n,), (), ()))
    grown = cvxpy.multiply(one.a, square)
    linear = 2 * cvxpy.multiply(np.sqrt(one.b), w)
    drawn = cvxpy.sum(grown + cvxpy.norm(cvxpy.vstack([grown, linear]), 2, axis=0)) / 2
    loudest = np.sqrt(one.members**2 * one.b + one.members * one.a)
    constraints = [
        cvxpy.sum(w) == 1,
        w >= one.floor,
        w <= one.cap,
        cvxpy.norm1(w - one.u) <= bias,
        cvxpy.SOC(square + level, cvxpy.vstack([2 * w, square - level]), axis=0),
        drawn <= level,
        cvxpy.multiply(loudest, w) <= level,
    ]
    root = cvxpy.norm(cvxpy.hstack([bias, level / np.sqrt(one.honest)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "solution may be inaccurate": the column says how much
        cvxpy.Problem(cvxpy.Minimize(bias + root), constraints).solve(solver=cvxpy.CLARABEL)
    found = np.clip(np.asarray(w.value, dtype=np.float64), one.floor, one.cap)
    return np.asarray(found / found.sum(), dtype=np.float64)


def compare(count: int) -> None:
    """Print the largest differences over random instances."""
    gaps, excess, beaten = [], [], []
    for seed in range(count):
        one = instance(seed)
        pool = Pool(one.members, one.honest)
        ours = solve_distributed(one.u, one.a, **pool._asdict(), **one.options)
        theirs = pool.objective(conic_weights(one), one.costs)
        gaps.append(ours.gap / ours.objective)
        excess.append(theirs / ours.objective - 1.0)
        beaten.append(max(0.0, ours.lower_bound / theirs - 1.0))
    print(f"{count} random instances, K and h from 2 to N")
    print(f"largest gap of ours, relative        {max(gaps):.1e}")
    print(f"CVXPY above ours, largest / median   {max(excess):.1e} / {np.median(excess):.1e}")
    print(f"CVXPY below ours, largest            {max(0.0, -min(excess)):.1e}")
    print(f"CVXPY below our lower bound, largest {max(beaten):.1e}")


def alone(size: int, members: int, *, linear: bool) -> None:
    """Print the time of one large instance."""
    rng = np.random.default_rng([0, size])
    u = rng.uniform(0.5, 1.5, size)
    u /= u.sum()
    a = size * 10.0 ** rng.uniform(-2.0, 4.0, size)
    started = time.process_time()
    found = solve_distributed(
        u,
        a,
        cohort_size=members,
        honest=members // 2,
        linear_costs=a / 1_000 if linear else None,
    )
    seconds = time.process_time() - started
    gap = found.gap / found.objective
    print(f"{size:>10,} {members:>10,} {linear!s:>7} {seconds:>8.2f} s {gap:>10.0e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=1_000)
    parser.add_argument("--largest", type=int, default=1_000_000)
    arguments = parser.parse_args()
    compare(arguments.instances)
    print(f"\n{'clients':>10} {'cohort':>10} {'linear':>7} {'processor':>10} {'gap':>10}")
    for size in (10_000, 100_000, 1_000_000):
        if size <= arguments.largest:
            for members in (10, size // 100, size // 2, size):
                for linear in (False, True):
                    alone(size, members, linear=linear)


if __name__ == "__main__":
    main()
