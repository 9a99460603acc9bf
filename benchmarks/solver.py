# SPDX-License-Identifier: Apache-2.0
"""The exact solver against CVXPY with CLARABEL: time and excess of the objective, in one run.

Run ``python benchmarks/solver.py`` (about a minute, most of it CVXPY's) or add ``--quick`` for
N = 10 and 100 only. Times are of the processor, the best of several calls (``OMP_NUM_THREADS=1``,
as idle threads of a BLAS count too); ours include the certificate,
CVXPY's include building the problem, as every new population needs. CVXPY runs at its default
tolerances; its probabilities are clipped and rescaled before the objective is compared.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.selection import solve_selection
from dpcohort.selection._instance import Costs, objective_of

_COMPARED = (10, 100, 1_000, 10_000, 100_000)
_ALONE = (1_000_000, 10_000_000)


def population(size: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Unbiased probabilities within a factor 3 of each other, noise costs over six decades."""
    rng = np.random.default_rng([seed, size])
    unbiased = rng.uniform(0.5, 1.5, size)
    return unbiased / unbiased.sum(), size * 10.0 ** rng.uniform(-2.0, 4.0, size)


def solve_with_cvxpy(unbiased: FloatArray, noise: FloatArray) -> FloatArray:
    """Problem 1 as a second-order cone program."""
    cvxpy: Any = importlib.import_module("cvxpy")  # its functions carry no types
    p = cvxpy.Variable(unbiased.size)
    bias = cvxpy.Variable()
    objective = bias + cvxpy.norm(cvxpy.hstack([bias, cvxpy.multiply(np.sqrt(noise), p)]))
    constraints = [cvxpy.sum(p) == 1, p >= 0, cvxpy.norm1(p - unbiased) <= bias]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "solution may be inaccurate": the column says how much
        cvxpy.Problem(cvxpy.Minimize(objective), constraints).solve(solver=cvxpy.CLARABEL)
    found = np.maximum(np.asarray(p.value, dtype=np.float64), 0.0)
    return np.asarray(found / found.sum(), dtype=np.float64)


def best_time(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of several calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def compare(size: int) -> str:
    unbiased, noise = population(size)
    solution = solve_selection(unbiased, noise)
    found = solve_with_cvxpy(unbiased, noise)
    excess = objective_of(found, Costs(unbiased, noise)) / solution.objective - 1.0
    ours = best_time(lambda: solve_selection(unbiased, noise), 200 if size <= 1_000 else 20)
    repeats = 5 if size <= 1_000 else 2 if size <= 10_000 else 1
    theirs = best_time(lambda: solve_with_cvxpy(unbiased, noise), repeats)
    return (
        f"{size:>12,} {ours * 1e3:>12.3f} {theirs * 1e3:>12.1f} {theirs / ours:>8.0f}x "
        f"{solution.gap / solution.objective:>10.0e} {excess:>12.1e}"
    )


def alone(size: int, *, bounded: bool) -> str:
    unbiased, noise = population(size)
    options: dict[str, Any] = {}
    if bounded:
        options = {"linear_costs": noise / 1_000, "floor": 0.1 * unbiased, "cap": 5.0 * unbiased}
    solution = solve_selection(unbiased, noise, **options)
    seconds = best_time(lambda: solve_selection(unbiased, noise, **options), 3)
    note = "linear costs, floor, cap" if bounded else "as printed"
    return f"{size:>12,} {seconds * 1e3:>12.1f} {solution.gap / solution.objective:>10.0e}   {note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="N = 10 and 100 only")
    quick = parser.parse_args().quick
    print("Problem 1, exact solver against CVXPY/CLARABEL")
    print(
        f"{'clients':>12} {'ours [ms]':>12} {'CVXPY [ms]':>12} {'ratio':>9} "
        f"{'our gap':>10} {'CVXPY excess':>12}"
    )
    for size in _COMPARED[:2] if quick else _COMPARED:
        print(compare(size), flush=True)
    if quick:
        return
    print("\nThe exact solver alone")
    print(f"{'clients':>12} {'ours [ms]':>12} {'our gap':>10}")
    for size in _ALONE:
        print(alone(size, bounded=False), flush=True)
    print(alone(_ALONE[0], bounded=True), flush=True)


if __name__ == "__main__":
    main()
