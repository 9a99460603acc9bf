# SPDX-License-Identifier: Apache-2.0
"""Kill -9 a training after each of its rounds, resume it, and compare the model byte by byte.

``python benchmarks/resume.py`` kills once after every one of 10 rounds, at a different moment each
time: when the round is written down, or when it is counted in the ledger but not yet computed. One
more training is killed after every single round. Every final model must have the SHA-256 of a
training that was never killed. Exit code 1 if one has not.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from dpcohort import Population, Training, make_plan
from dpcohort._validate import IntArray
from dpcohort.data import load_dataset
from dpcohort.engine import Optimiser
from dpcohort.runs import train
from dpcohort.runs._journal import Journal

Kill = Callable[[], None]
_HEAVY = ("torch._dynamo", "torch._functorch.apis", "safetensors", "dp_accounting.pld.accountant")


class Killer:
    """Ends the process, without a chance to clean up, after one round."""

    def __init__(self, after: int | None) -> None:
        self._after = after

    def on_round(self, record: object, run: object) -> None:
        """Kill when the round is there."""
        if getattr(record, "round", None) == self._after:
            os.kill(os.getpid(), signal.SIGKILL)


def attempt(out: Path, rounds: int, *, after: int | None, mid_round: int | None) -> None:
    """One training or its continuation, in this process."""
    clients = Population.from_arrays(sizes=[240] * 6, epsilon=[0.5, 1, 2, 4, 6, 8], delta=1e-5)
    settings = Training(rounds=rounds, cohort_size=3, sampling_rate=0.1, dimension=650)
    plan = make_plan(clients, settings, seed=1)
    if mid_round is not None:
        count = Journal.count

        def count_and_die(self: Journal, round: int, cohort: IntArray) -> None:
            count(self, round, cohort)
            if round == mid_round:
                os.kill(os.getpid(), signal.SIGKILL)

        Journal.count = count_and_die  # type: ignore[method-assign]
    train(
        plan,
        "logistic",
        load_dataset("digits"),
        optimiser=Optimiser(local_step=0.5, server_momentum=0.5, average_decay=0.8),
        seed=2,
        device="cpu",
        out=out,
        resume=True,
        checkpoint_every=3,
        callbacks=[Killer(after)],
    )


def in_child(work: Kill) -> int:
    """Do the work in a process of its own; the number of the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def hashes(out: Path) -> tuple[str, ...]:
    names = ("model.safetensors", "model-last.safetensors")
    return tuple(hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names)


def survives(folder: Path, rounds: int, kills: list[tuple[int, bool]]) -> tuple[str, ...]:
    """Final hashes of a training that is killed at each of these places, then left alone."""
    for round_index, is_mid in kills:
        after, mid = (None, round_index) if is_mid else (round_index, None)
        ended = in_child(lambda a=after, m=mid: attempt(folder, rounds, after=a, mid_round=m))  # type: ignore[misc]
        if ended != signal.SIGKILL:
            raise SystemExit(f"the training should have been killed in round {round_index}")
    if in_child(lambda: attempt(folder, rounds, after=None, mid_round=None)) != 0:
        raise SystemExit("the last resume failed")
    return hashes(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for module in _HEAVY:  # loaded here once, not in every child
        importlib.import_module(module)
    load_dataset("digits")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wanted = survives(folder / "whole", options.rounds, [])
        step = max(1, options.rounds // options.kills)
        places = [(t, t // step % 2 == 1) for t in range(0, options.rounds, step)][: options.kills]
        equal = 0
        for number, kill in enumerate(places):
            same = survives(folder / f"killed-{number}", options.rounds, [kill]) == wanted
            equal += same
            moment = "counted" if kill[1] else "done"
            print(f"killed when round {kill[0]} was {moment}: {'same' if same else 'OTHER'} bytes")
        every = survives(folder / "every", options.rounds, places[:-1]) == wanted
        print(f"killed {len(places) - 1} times in one training: {'same' if every else 'OTHER'}")
        print(f"{equal} of {len(places)} identical")
    return 0 if every and equal == len(places) else 1


if __name__ == "__main__":
    sys.exit(main())
