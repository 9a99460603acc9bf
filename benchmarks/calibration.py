# SPDX-License-Identifier: Apache-2.0
"""Calibration: how fast, how far above the optimum, and never below it.

    python benchmarks/calibration.py                 speed, and 300 tuples against dp-accounting
    python benchmarks/calibration.py --extreme       time and safety at the edges
    python benchmarks/calibration.py --golden        rewrite tests/accounting/golden_noise.json

The reference is dp-accounting's privacy loss distribution with pessimistic connect-the-dots. Its
grid is refined until its own pessimism, which falls with the square of the interval, is a few
millionths of z. For batches of fixed size dp-accounting has no mechanism; its composition is fed
with the exact privacy profile instead.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpcohort._validate import FloatArray
from dpcohort.accounting import calibrate_noise, gaussian_mu
from dpcohort.accounting._calibration import clt_noise_multiplier

GOLDEN = Path(__file__).parent.parent / "tests" / "accounting" / "golden_noise.json"

CONTRACTS = (("poisson", "zero-out"), ("fixed", "replace-one"), ("poisson", "replace-one"))

GOLDEN_TUPLES: tuple[tuple[str, str, float, float, float, int], ...] = (
    ("poisson", "zero-out", 0.01, 1e-5, 0.2133, 100),
    ("poisson", "zero-out", 0.1, 1e-5, 0.0533, 10),
    ("poisson", "zero-out", 0.5, 1e-5, 0.2133, 50),
    ("poisson", "zero-out", 1.0, 1e-5, 0.2133, 1),
    ("poisson", "zero-out", 1.0, 1e-5, 0.2133, 100),
    ("poisson", "zero-out", 1.0, 1e-6, 0.02, 2),
    ("poisson", "zero-out", 2.0, 1e-8, 0.05, 500),
    ("poisson", "zero-out", 8.0, 1e-5, 0.0533, 1000),
    ("poisson", "zero-out", 10.0, 1e-3, 0.5, 30),
    ("poisson", "zero-out", 12.0, 1e-5, 0.02, 5),
    ("fixed", "replace-one", 0.1, 1e-5, 0.2133, 100),
    ("fixed", "replace-one", 1.0, 1e-5, 0.0533, 3),
    ("fixed", "replace-one", 1.0, 1e-5, 0.2133, 100),
    ("fixed", "replace-one", 8.0, 1e-6, 0.256, 500),
    ("fixed", "replace-one", 12.0, 1e-5, 0.5, 10),
    ("poisson", "replace-one", 0.1, 1e-5, 0.2133, 100),
    ("poisson", "replace-one", 1.0, 1e-5, 0.2133, 1),
    ("poisson", "replace-one", 1.0, 1e-5, 0.0533, 10),
    ("poisson", "replace-one", 2.0, 1e-7, 0.3, 200),
    ("poisson", "replace-one", 12.0, 1e-5, 0.1, 5),
)


def reference_delta(
    sampler: str, neighbours: str, epsilon: float, rate: float, steps: int, z: float, dv: float
) -> float:
    """A pessimistic delta by dp-accounting on a grid of this interval."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    if sampler == "fixed":
        distribution: Any = _fixed_distribution(rate, z, dv)
    else:
        special = neighbours == "zero-out"
        relation = (
            NeighboringRelation.REPLACE_SPECIAL if special else NeighboringRelation.REPLACE_ONE
        )
        distribution = privacy_loss_distribution.from_gaussian_mechanism(
            z,
            sampling_prob=rate,
            value_discretization_interval=dv,
            neighboring_relation=relation,
            pessimistic_estimate=True,
        )
    return float(distribution.self_compose(steps).get_delta_for_epsilon(epsilon))


def _fixed_distribution(rate: float, z: float, dv: float) -> Any:
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    mu = 2.0 / z
    top = math.log1p(rate * math.expm1(min(mu * (mu / 2 + 10.0), 600.0)))
    index = np.arange(math.ceil(top / dv) + 1)
    grid = index * dv
    inner = np.log1p(np.expm1(np.minimum(grid, 500.0)) / rate)
    upper = log_ndtr(mu / 2 - inner / mu)
    profile = rate * np.exp(upper) * -np.expm1(inner + log_ndtr(-mu / 2 - inner / mu) - upper)
    mirror = -np.expm1(-grid[:0:-1]) + np.exp(-grid[:0:-1]) * profile[:0:-1]
    mass = pld_pmf.create_pmf_pessimistic_connect_dots(
        dv, np.concatenate([-index[:0:-1], index]), np.concatenate([mirror, profile])
    )
    return privacy_loss_distribution.PrivacyLossDistribution(mass)


def interval(epsilon: float, delta: float, steps: int, share: float) -> float:
    """A share of the standard deviation of one of T losses that spend the budget together."""
    return share * float(gaussian_mu(epsilon=epsilon, delta=delta)) / math.sqrt(steps)


def reference_noise(
    row: tuple[str, str, float, float, float, int], near: float, dv: float
) -> float:
    """The noise at which the reference's delta is the promised one."""
    sampler, neighbours, epsilon, delta, rate, steps = row

    def excess(log_z: float) -> float:
        value = reference_delta(sampler, neighbours, epsilon, rate, steps, math.exp(log_z), dv)
        return math.log(value) - math.log(delta)

    centre = math.log(near)
    solve: Any = brentq
    root: float = solve(excess, centre - 0.05, centre + 0.05, xtol=1e-8, rtol=1e-9)
    return math.exp(root)


def population(count: int, rng: np.random.Generator, *, mixed: bool) -> dict[str, FloatArray]:
    return {
        "epsilon": np.exp(rng.uniform(np.log(0.01), np.log(12.0), count)),
        "delta": 10 ** rng.uniform(-8, -3, count) if mixed else np.full(count, 1e-5),
        "sampling_rate": rng.uniform(0.02, 0.5, count),
        "steps": np.floor(np.exp(rng.uniform(0, np.log(1001.0), count))),
    }


def speed(rng: np.random.Generator) -> None:
    print("10,000 distinct clients, epsilon 0.01-12, r 0.02-0.5, T 1-1000 (log-uniform), one core")
    for mixed in (False, True):
        clients = population(10_000, rng, mixed=mixed)
        for sampler, neighbours in CONTRACTS:
            begin = time.process_time()
            calibrate_noise(**clients, sampler=sampler, neighbours=neighbours)
            taken = time.process_time() - begin
            deltas = "delta 1e-8..1e-3" if mixed else "delta 1e-5"
            print(f"  {sampler:8} {neighbours:12} {deltas:17} {taken:6.2f} s")
    million = population(1_000_000, rng, mixed=True)
    begin = time.process_time()
    gaussian_mu(epsilon=million["epsilon"], delta=million["delta"])
    print(f"  1,000,000 clients, gaussian_mu: {time.process_time() - begin:.2f} s")
    begin = time.process_time()
    clt_noise_multiplier(**million)
    print(f"  1,000,000 clients, clt_noise_multiplier: {time.process_time() - begin:.2f} s")


def compare(count: int, rng: np.random.Generator) -> None:
    """Both sides in one run: delta at our noise, and our noise over the reference's optimum."""
    print(f"against dp-accounting, {count} random tuples of each contract, delta 1e-8..1e-3")
    for sampler, neighbours in CONTRACTS:
        clients = population(count, rng, mixed=True)
        begin = time.process_time()
        noise = calibrate_noise(**clients, sampler=sampler, neighbours=neighbours)
        ours = (time.process_time() - begin) / count
        worst, excess = 0.0, []
        begin = time.process_time()
        for i in range(count):
            epsilon, delta, rate, steps = (float(column[i]) for column in clients.values())
            row = (sampler, neighbours, epsilon, delta, rate, int(steps))
            dv = interval(epsilon, delta, int(steps), 1 / 50)
            found = reference_delta(sampler, neighbours, epsilon, rate, int(steps), noise[i], dv)
            worst = max(worst, found / delta)
            excess.append(noise[i] / reference_noise(row, noise[i], dv) - 1.0)
        theirs = (time.process_time() - begin) / count
        quantiles = np.quantile(excess, [0, 0.5, 0.9, 1])
        print(
            f"  {sampler:8} {neighbours:12} largest delta / promised {worst:.5f}; z above optimum "
            + "min {:.4%} median {:.4%} 90% {:.4%} max {:.4%}".format(*quantiles)
            + f"; {ours * 1e3:.2f} ms against {theirs * 1e3:.0f} ms, ratio {theirs / ours:.0f}"
        )


def extreme(rng: np.random.Generator) -> None:
    count = 1000
    print(f"{count} clients, epsilon 1e-3-50, delta 1e-12-1e-2, r 1e-4-1, T 2-1e5 (log-uniform)")
    clients = {
        "epsilon": 10 ** rng.uniform(-3, math.log10(50), count),
        "delta": 10 ** rng.uniform(-12, -2, count),
        "sampling_rate": 10 ** rng.uniform(-4, 0, count),
        "steps": np.floor(10 ** rng.uniform(math.log10(2), 5, count)),
    }
    # below 1e-9 the reference's own rounding shows
    checked = np.flatnonzero(clients["delta"] > 1e-9)[:40]
    for sampler, neighbours in CONTRACTS:
        begin = time.process_time()
        noise = calibrate_noise(**clients, sampler=sampler, neighbours=neighbours)
        taken = time.process_time() - begin
        ratio = []
        for i in checked:
            epsilon, delta, rate, steps = (float(column[i]) for column in clients.values())
            dv = min(interval(epsilon, delta, int(steps), 1 / 40), 1e-2)
            found = reference_delta(sampler, neighbours, epsilon, rate, int(steps), noise[i], dv)
            ratio.append(found / delta)
        print(
            f"  {sampler:8} {neighbours:12} {taken:6.1f} s; of {checked.size} compared, delta / "
            f"promised: median {np.median(ratio):.5f}, largest {max(ratio):.5f}"
        )


def golden() -> None:
    """The noise at an interval and at half of it, whose difference bounds the pessimism left."""
    entries = []
    for row in GOLDEN_TUPLES:
        sampler, neighbours, epsilon, delta, rate, steps = row
        near = calibrate_noise(
            epsilon=epsilon,
            delta=delta,
            sampling_rate=rate,
            steps=steps,
            sampler=sampler,
            neighbours=neighbours,
        )
        dv = interval(epsilon, delta, steps, 1 / 60)
        coarse, fine = reference_noise(row, near, dv), reference_noise(row, near, dv / 2)
        entries.append(
            {
                "sampler": sampler,
                "neighbours": neighbours,
                "epsilon": epsilon,
                "delta": delta,
                "sampling_rate": rate,
                "steps": steps,
                "noise_multiplier": round(fine, 8),
                "discretisation": float(f"{max(coarse / fine - 1.0, 1e-8):.1e}"),
            }
        )
        print(f"{row} z = {fine:.6f}, discretisation {coarse / fine - 1:.1e}, ours {near:.6f}")
    GOLDEN.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--golden", action="store_true", help="rewrite the golden values")
    parser.add_argument("--extreme", action="store_true", help="time and safety at the edges")
    parser.add_argument("--tuples", type=int, default=300, help="tuples against dp-accounting")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    if options.golden:
        golden()
    elif options.extreme:
        extreme(rng)
    else:
        speed(rng)
        compare(options.tuples, rng)


if __name__ == "__main__":
    main()
