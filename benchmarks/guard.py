# SPDX-License-Identifier: Apache-2.0
"""How long a guard takes: exact noise, one record, one draw over the socket.

``python benchmarks/guard.py [--quick]``. Noise on the lattice is drawn without floats and a
record's gradient is computed alone; this says what that costs beside torch's float noise and the
engine's batches.
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

from dpcohort.deploy.guard import AcceptedRun, DrawRequest, GuardClient, GuardTerms, ModelTerms
from dpcohort.deploy.guard.files import GuardedData
from dpcohort.deploy.guard.start import open_guard
from dpcohort.deploy.guard.training import LocalTraining
from dpcohort.engine import cross_entropy
from dpcohort.engine.clipping import ClippedNetwork
from dpcohort.engine.lattice import Lattice, rounded_gaussian
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


def noise(count: int, repeats: int) -> None:
    lattice = median_ms(lambda: rounded_gaussian(count, 24), repeats)
    floats = median_ms(lambda: torch.empty(count).normal_(), repeats)
    print(
        f"noise, {count:,} coordinates: {lattice:.1f} ms on the lattice, {floats:.1f} ms in torch"
    )


def one_step(name: str, shape: tuple[int, ...], repeats: int) -> None:
    dice = np.random.default_rng(0)
    inputs = dice.random((_RECORDS, *shape), np.float32)
    data = GuardedData(inputs, dice.integers(0, 10, _RECORDS), "")
    model = ModelTerms(name=name, input_shape=shape, classes=10)
    training = LocalTraining(model, data)
    weights = np.zeros(training.dimension, np.float32)
    guard = median_ms(
        lambda: training.update(
            weights,
            Lattice(2.0, 1.0),
            "fixed",
            rate=_BATCH / _RECORDS,
            batch_size=_BATCH,
            step_sizes=[0.1],
        ),
        repeats,
    )
    built = build_model(name, input_shape=shape, classes=10, seed=0)
    x, y = torch.from_numpy(inputs[:_BATCH]), torch.from_numpy(data.labels[:_BATCH])
    network = ClippedNetwork(built, cross_entropy, x[:3], y[:3])
    start, clip = torch.from_numpy(weights)[None], torch.ones(1)
    engine = median_ms(lambda: network.clipped_sums(start, x[None], y[None], clip=clip), repeats)
    print(
        f"one step, {name}, D = {training.dimension:,}, batch {_BATCH}: {guard:.0f} ms record by "
        f"record, {engine:.0f} ms in the engine's batch"
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
        one_step("mnist-cnn", (1, 28, 28), repeats)
    with tempfile.TemporaryDirectory() as folder:
        over_the_socket(Path(folder), repeats)


if __name__ == "__main__":
    main()
