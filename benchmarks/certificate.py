# SPDX-License-Identifier: Apache-2.0
"""Milliseconds per certified client: our PLD against dp-accounting at matched accuracy.

Run with ``python benchmarks/certificate.py [clients] [library clients]``. Both methods answer for
the same random clients in one run; the excess is measured against our own grid at a tolerance of
2e-6. Processor time (``OMP_NUM_THREADS=1``); every client is distinct, so
nothing is remembered.
"""

from __future__ import annotations

import math
import sys
import time
from typing import NamedTuple

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.accounting import Event, certify_epsilon
from dpcohort.accounting._events import composed_epsilon
from dpcohort.accounting._sampler import Neighbours

DELTA = 1e-5
CONTRACTS: list[tuple[str, Neighbours]] = [
    ("poisson", "zero-out"),
    ("poisson", "replace-one"),
    ("fixed", "replace-one"),
]


class Clients(NamedTuple):
    """Random clients, one entry each."""

    noise: FloatArray
    rate: FloatArray
    steps: FloatArray


def clients(count: int, seed: int) -> Clients:
    rng = np.random.default_rng(seed)
    return Clients(
        noise=np.exp(rng.uniform(math.log(0.6), math.log(30), count)),
        rate=rng.uniform(0.02, 0.5, count),
        steps=np.floor(np.exp(rng.uniform(0, math.log(1000), count))) + 1,
    )


def ours(some: Clients, sampler: str, neighbours: Neighbours, tolerance: float) -> FloatArray:
    events = (
        Event.of(
            noise_multiplier=noise,
            sampling_rate=rate,
            steps=steps,
            sampler=sampler,
            neighbours=neighbours,
        )
        for noise, rate, steps in zip(*some, strict=True)
    )
    return np.array([composed_epsilon((event,), DELTA, tolerance) for event in events])


def library(some: Clients, neighbours: str) -> FloatArray:
    found: FloatArray = certify_epsilon(
        delta=DELTA,
        noise_multiplier=some.noise,
        sampling_rate=some.rate,
        steps=some.steps,
        neighbours=neighbours,
        method="dp-accounting",
    )
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    library_count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    everyone, few = clients(count, seed=0), clients(library_count, seed=1)
    ours(clients(2, seed=2), "poisson", "zero-out", 1e-4)  # imports and first calls
    library(clients(2, seed=2), "zero-out")
    print(f"{count} clients ({library_count} for the ratio), delta = {DELTA:g}")
    print("contract               ours ms    excess  |  ours ms  library ms  ratio  library excess")
    for sampler, neighbours in CONTRACTS:
        start = time.process_time()
        epsilon = ours(everyone, sampler, neighbours, 1e-4)
        spent = (time.process_time() - start) / count * 1e3
        excess = np.max(epsilon / ours(everyone, sampler, neighbours, 2e-6) - 1)
        line = f"{sampler + ' ' + neighbours:<21}{spent:>9.2f}{excess:>10.1e}"
        if sampler == "poisson":
            start = time.process_time()
            ours(few, sampler, neighbours, 1e-4)
            middle = time.process_time()
            epsilon = library(few, neighbours)
            end = time.process_time()
            excess = np.max(epsilon / ours(few, sampler, neighbours, 2e-6) - 1)
            line += f"  |{(middle - start) / library_count * 1e3:>9.2f}"
            line += f"{(end - middle) / library_count * 1e3:>12.1f}"
            line += f"{(end - middle) / (middle - start):>7.0f}{excess:>16.1e}"
        print(line)


if __name__ == "__main__":
    main()
