# SPDX-License-Identifier: Apache-2.0
"""From a CSV of clients to a saved plan: seconds and memory of each part.

``python benchmarks/plan.py`` for 1,000,000 clients, ``--clients 10000`` for fewer;
``--distributed`` for distributed noise with half of a cohort colluding.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from dpcohort.accounting import Contract
from dpcohort.clients import Population
from dpcohort.plan import Plan, make_plan
from dpcohort.training import Training

Result = TypeVar("Result")


def timed(name: str, work: Callable[[], Result]) -> Result:
    started, computed = time.perf_counter(), time.process_time()
    result = work()
    computed = time.process_time() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:<28} {time.perf_counter() - started:8.2f} s   "
        f"(processor {computed:6.2f} s)   peak {peak:7.0f} MB",
        flush=True,
    )
    return result


def write_clients(path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(100, 2000, count)
    epsilon = rng.uniform(0.05, 8, count)
    with path.open("w") as file:
        file.write("id,size,epsilon,delta\n")
        file.writelines(
            f"client-{i},{size},{eps:.6g},1e-6\n"
            for i, (size, eps) in enumerate(zip(sizes.tolist(), epsilon.tolist(), strict=True))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cohort-size", type=int, default=100)
    parser.add_argument("--distributed", action="store_true")
    arguments = parser.parse_args()
    contract = Contract(trust="distributed", colluding=0.5) if arguments.distributed else Contract()
    training = Training(
        rounds=arguments.rounds, cohort_size=arguments.cohort_size, sampling_rate=0.1
    )
    with tempfile.TemporaryDirectory() as folder:
        csv, saved = Path(folder) / "clients.csv", Path(folder) / "plan.json"
        write_clients(csv, arguments.clients)
        print(f"{arguments.clients:,} clients, {training.total_draws:,} draws")
        started = time.perf_counter()
        clients = timed("read the CSV", lambda: Population.from_csv(csv))
        plan = timed(
            "make the plan", lambda: make_plan(clients, training, accountant=contract, seed=0)
        )
        timed("save the plan", lambda: plan.save(saved))
        print(f"{'CSV to saved plan':<28} {time.perf_counter() - started:8.2f} s")
        again = timed("load the plan", lambda: Plan.load(saved))
        print(f"file {saved.stat().st_size / 1e6:.0f} MB, same hash: {again == plan}")


if __name__ == "__main__":
    main()
