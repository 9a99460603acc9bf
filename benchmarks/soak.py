# SPDX-License-Identifier: Apache-2.0
"""Ten thousand private rounds in one process: does it keep memory, files or threads it should not?

``python benchmarks/soak.py [--rounds 10000] [--engine batched] [--device cpu]``. A softmax
regression on the digits is trained with the operating system's entropy into a run folder, as
``dpcohort train`` does with private records, with a checkpoint after each round. Memory (resident
set), open files and threads are printed on the way. The verdict compares the end with the state
after a fifth of the rounds: no file and no thread more, and memory that grows by less than 2 KiB a
round (the public record of a round is kept for the run's history) and 4 MiB once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort import Population, Training, load_dataset, make_plan, train

_GROWTH, _ONCE = 2048.0, 4.0 * 2**20  # bytes: a round, and in all
_LINES = 20


@dataclass
class Watch:
    """A callback that looks at its own process now and then."""

    every: int
    began: float = field(default_factory=time.monotonic)
    seen: list[tuple[int, int, int, int]] = field(default_factory=list)

    def on_round(self, record: Any, run: Any) -> None:
        """Look, and print what is seen, every so many rounds."""
        done = record.round + 1
        if done % self.every:
            return
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        files = len(os.listdir("/proc/self/fd"))
        threads = len(os.listdir("/proc/self/task"))
        self.seen.append((done, memory, files, threads))
        print(
            f"round {done}: {memory / 2**20:.1f} MiB, {files} open files, {threads} threads, "
            f"{time.monotonic() - self.began:.0f} s",
            flush=True,
        )

    def verdict(self) -> tuple[bool, str]:
        """Whether all was flat after a fifth of the rounds, and how flat."""
        rest = np.array(self.seen[len(self.seen) // 5 :], dtype=np.float64)
        rounds, memory, files, threads = rest.T
        growth = float(np.polyfit(rounds, memory, 1)[0])
        more = [int(column.max() - column[0]) for column in (files, threads)]
        span = float(rounds[-1] - rounds[0])
        flat = growth * span < _GROWTH * span + _ONCE and more == [0, 0]
        words = (
            f"{growth:+.0f} bytes a round, {more[0]:+d} open files, {more[1]:+d} threads after "
            f"round {int(rounds[0])}"
        )
        return flat, words


def soak(rounds: int, *, engine: str, device: str, folder: Path) -> tuple[bool, str]:
    """Train so many private rounds; the verdict."""
    clients = Population.from_arrays(sizes=[300] * 4, epsilon=[2.0, 4.0, 8.0, 8.0], delta=1e-5)
    settings = Training(rounds=rounds, cohort_size=2, batch_size=10, dimension=650)
    plan = make_plan(clients, settings, selection="unbiased", seed=0)
    watch = Watch(every=max(1, rounds // _LINES))
    run = train(
        plan,
        "logistic",
        replace(load_dataset("digits"), public=False),
        engine=engine,
        device=device,
        out=folder / "run",
        evaluate_every=rounds,
        callbacks=[watch],
    )
    assert run.rounds_done == rounds
    return watch.verdict()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--engine", default="batched", choices=["batched", "reference"])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--folder", type=Path, default=None, help="where the run folder lies")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        flat, words = soak(
            options.rounds, engine=options.engine, device=options.device, folder=Path(name)
        )
    print(f"{'flat' if flat else 'NOT FLAT'} over {options.rounds} private rounds: {words}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
