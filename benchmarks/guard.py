# SPDX-License-Identifier: Apache-2.0
"""How long a guard takes: exact noise, one step, one draw over the socket.

``python benchmarks/guard.py [--quick]``. Noise on the lattice is exact, and a record's gradient is
cut to integers by itself; this says what that costs beside torch's float noise and the engine's
clipped sum in floating point. Both sides of a ratio are timed in turns in one run, on one thread,
by the processor's time; the ratio is the median of those of neighbouring turns.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dpcohort.accounting._samplers import sampler_of
from dpcohort.deploy.guard import AcceptedRun, DrawRequest, GuardClient, GuardTerms, ModelTerms
from dpcohort.deploy.guard._files import GuardedData
from dpcohort.deploy.guard._start import open_guard
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.engine import Lattice, cross_entropy
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._lattice import rounded_gaussian
from dpcohort.engine.clipping import ClippedNetwork
from dpcohort.models import build_model

_RECORDS, _BATCH = 600, 128


def median_ms(action: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of several calls, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - started))
    return float(np.median(times[1:]))


def in_turns(
    one: Callable[[], object], other: Callable[[], object], repeats: int
) -> tuple[float, float, float]:
    """Median milliseconds of the processor for both, and the ratio of the first to the second."""
    times = np.zeros((repeats + 1, 2))
    for turn in times:
        for side, action in enumerate((one, other)):
            started = time.process_time()
            action()
            turn[side] = 1000 * (time.process_time() - started)
    a, b = np.median(times[1:], axis=0)
    return float(a), float(b), float(np.median(times[1:, 0] / times[1:, 1]))


def noise(count: int, repeats: int) -> None:
    floats = torch.empty(count)
    lattice, plain, ratio = in_turns(
        lambda: rounded_gaussian(count, 24), lambda: floats.normal_(), repeats
    )
    print(
        f"noise, {count:,} coordinates: {lattice:.1f} ms on the lattice, {plain:.1f} ms in torch, "
        f"ratio {ratio:.2f}"
    )


def one_step(
    name: str, shape: tuple[int, ...], repeats: int, sampler: str = "fixed", *, alone: bool = False
) -> None:
    dice = np.random.default_rng(0)
    inputs = dice.random((_RECORDS, *shape), np.float32)
    data = GuardedData(inputs, dice.integers(0, 10, _RECORDS), "")
    model = ModelTerms(name=name, input_shape=shape, classes=10)
    training = LocalTraining(model, data)
    built = build_model(name, input_shape=shape, classes=10, seed=0)
    x, y = torch.from_numpy(inputs[:_BATCH]), torch.from_numpy(data.labels[:_BATCH])
    if alone:
        training._isolated = IsolatedModel(built, cross_entropy, x[:3], y[:3], shared=False)
    network = ClippedNetwork(built, cross_entropy, x[:3], y[:3])
    start, clip = network.layout.flatten(built), torch.ones(1)
    batches = (sampler_of(sampler), _BATCH / _RECORDS, _BATCH)
    guard, engine, ratio = in_turns(
        lambda: training.update(start.numpy(), Lattice(2.0, 1.0), batches, [0.1]),
        lambda: network.clipped_sums(start[None], x[None], y[None], clip=clip),
        repeats,
    )
    print(
        f"one step, {name}, D = {training.dimension:,}, {sampler} batch {_BATCH}: {guard:.1f} ms "
        f"{'record by record' if alone else 'in a guard'}, {engine:.1f} ms for the engine's "
        f"clipped sum, ratio {ratio:.2f}"
    )


def over_the_socket(folder: Path, repeats: int) -> None:
    dice = np.random.default_rng(0)
    inputs = dice.random((_RECORDS, 64), np.float32)
    np.savez(folder / "d.npz", inputs=inputs, labels=dice.integers(0, 10, _RECORDS))
    os.chmod(folder / "d.npz", 0o600)
    run = AcceptedRun(
        run="bench",
        epsilon=4.0,
        delta=1e-5,
        clip=1.0,
        batch_size=6,
        local_steps=1,
        rounds=1000,
        draws=1000,
        least_noise_multiplier=4.0,
    )
    terms = GuardTerms(
        dataset="bench",
        lifetime_epsilon=4.0,
        lifetime_delta=1e-5,
        model=ModelTerms(name="logistic", input_shape=(64,), classes=10),
        runs=(run,),
        same_user=True,
        answer_seconds=0.0,
    )
    with open_guard(
        terms, data=folder / "d.npz", ledger=folder / "l", socket=folder / "s", new_ledger=True
    ) as service:
        service.start()
        with GuardClient(folder / "s") as guard:
            hello = guard.hello("bench")
            rounds = iter(range(1000))

            def draw(round: int) -> None:
                guard.draw(
                    DrawRequest(
                        run="bench",
                        plan="",
                        round=round,
                        draw=0,
                        clip=1.0,
                        noise_multiplier=4.0,
                        sampling_rate=6 / _RECORDS,
                        batch_size=6,
                        local_steps=1,
                        sampler="poisson",
                        neighbours="zero-out",
                        step_sizes=[0.1],
                        model=hello.model,
                        layout=hello.layout,
                        vector=np.zeros(hello.dimension, np.float32),
                    )
                )

            fresh = median_ms(lambda: draw(next(rounds)), repeats)
            again = median_ms(lambda: draw(0), repeats)
    print(f"a draw over the socket, batch 6: {fresh:.1f} ms, sent again {again:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small and few")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    repeats = 1 if quick else 15
    noise(10_000 if quick else 1_000_000, repeats)
    one_step("logistic", (64,), repeats)
    if not quick:
        for sampler in ("fixed", "poisson"):
            one_step("mnist-cnn", (1, 28, 28), 3 * repeats, sampler)
        one_step("mnist-cnn", (1, 28, 28), 5, alone=True)
        one_step("mnist-cnn-large", (1, 28, 28), 5)
    with tempfile.TemporaryDirectory() as folder:
        over_the_socket(Path(folder), repeats)


if __name__ == "__main__":
    main()
