# SPDX-License-Identifier: Apache-2.0
"""What fixed features reach on MNIST and Fashion-MNIST, and how their settings were chosen.

``python benchmarks/features.py`` reads ``examples/configs/*-features.toml``. For each it first
holds a tenth of the training records out, trains on the others with each centring and step size
and prints the accuracy on those held out; nothing is taken from it automatically, so a config that
does not hold the best setting shows. Then it trains the config's grid on all training records and
prints the accuracy on the test set. Features are computed once a data set. The search is not
charged to the budgets, as in the paper.

``python benchmarks/features.py --time`` computes the second-order features of CIFAR-10 (those of
the recipe ``beyond-cifar10-open``) and prints how long it takes, beside the same in complex numbers
and without what a mirror image shares with its image, on some of the images. ``--images 2000`` for
fewer, ``--made-up`` for random images where CIFAR-10 is not there, ``--device cuda`` for a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcohort.config import Config, load_config
from dpcohort.data import Dataset, dataset_from_arrays, load_dataset
from dpcohort.errors import DataMissingError
from dpcohort.models import (
    precompute_features,
    split_features,
    without_features,
)
from dpcohort.runs import (
    Interval,
    Job,
    configured_data,
    configured_job,
    mean_interval,
    train_side_by_side,
)
from dpcohort.runs._configured import combinations
from dpcohort_lab.features import OrientedFeatures
from dpcohort_lab.features.fixed import folded, morlet_bank
from dpcohort_lab.recipes.reading import load_recipe

Result = TypeVar("Result")

CONFIGS = Path(__file__).parents[1] / "examples" / "configs"
NAMES = ("mnist", "fashion-mnist")
STEP_SIZES = (8.0, 16.0, 32.0, 64.0)
CENTRINGS = ("block", "cell")
SEARCH_SEEDS = 2


def held_out_places(records: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.random.default_rng(0).permutation(records)
    held, rest = np.split(order, [records // 10])
    return rest, held


def training_records_only(data: Dataset) -> Dataset:
    """Nine tenths to train on, one tenth in the place of the test set."""
    rest, held = held_out_places(len(data))
    inputs, labels = data.train_inputs, data.train_labels
    return replace(
        data,
        train_inputs=inputs[rest],
        train_labels=labels[rest],
        test_inputs=inputs[held],
        test_labels=labels[held],
    )


def accuracy(jobs: list[Job], features: Dataset) -> Interval:
    """Of the jobs' models on features that are computed already."""
    ready = [replace(job, model=without_features(job.model), data=features) for job in jobs]
    return mean_interval([100 * run.test_accuracy for run in train_side_by_side(ready)])


def jobs_of(config: Config, data: Dataset, seeds: int) -> list[Job]:
    return [configured_job(config, data=data, shift=seed, device="cpu") for seed in range(seeds)]


def features_of(config: Config, data: Dataset) -> Dataset:
    return split_features(configured_job(config, data=data, device="cpu").model, data)[1]


def search(config: Config, data: Dataset) -> None:
    print("held-out training records, privacy-aware, s = 100:")
    images = training_records_only(data)
    for centring in CENTRINGS:
        options = f'model.options={{features = "oriented", centring = "{centring}"}}'
        featured = training_records_only(features_of(config.with_overrides([options]), data))
        for step in STEP_SIZES:
            changed = config.with_overrides([options, f"optimiser.learning_rate={step}"])
            found = accuracy(jobs_of(changed, images, SEARCH_SEEDS), featured)
            print(f"  centring {centring:<6} step size {step:<5g} {found.mean:6.2f} %", flush=True)


def report(config: Config, data: Dataset, seeds: int) -> None:
    print(f"test set, {seeds} seeds, mean and 95 % CI:")
    featured = features_of(config, data)
    for name, changed in combinations(config):
        started = time.perf_counter()
        found = accuracy(jobs_of(changed, data, seeds), featured)
        seconds = (time.perf_counter() - started) / seeds
        interval = f"{found.mean:6.2f} % ± {found.half_width:4.2f}"
        print(f"  {name:<34} {interval}   {seconds:.1f} s a run", flush=True)


class WrittenOut(OrientedFeatures):
    """The features as their definition reads, filter by filter in complex numbers."""

    @cached_property
    def bank(self) -> Tensor:
        """All wavelets, made once."""
        return morlet_bank(*self._padded, scales=self.scales, orientations=self.orientations)

    def _moduli(self, maps: Tensor, at: int, scales: Sequence[int]) -> Iterator[Tensor]:
        spectrum = torch.fft.fft2(maps).unsqueeze(-3)
        for scale in scales:
            wavelets = folded(self.bank[scale], 2**at) * 4**at
            yield torch.fft.ifft2(folded(spectrum * wavelets, 2 ** (scale - at))).abs()

    def _first_order(self, padded: Tensor, images: int) -> Iterator[Tensor]:
        return self._moduli(padded, 0, range(self.scales))


def told(name: str, work: Callable[[], Result]) -> tuple[Result, float]:
    """What the work gives and its processor time, printed with the time on the wall."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    processor = time.process_time() - processor
    wall = time.perf_counter() - wall
    print(f"{name:<44} {wall:7.1f} s   (processor {processor:7.1f} s)", flush=True)
    return result, processor


def some_images(count: int, *, made_up: bool) -> Dataset:
    """So many training images of CIFAR-10, and its test images or a fifth as many."""
    if made_up:
        images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), np.uint8)
        few = images[: max(1, count // 5)]
        labels = [np.arange(len(part)) % 10 for part in (images, few)]
        return dataset_from_arrays(
            "made-up",
            train_inputs=images,
            train_labels=labels[0],
            test_inputs=few,
            test_labels=labels[1],
            classes=10,
        )
    data = load_dataset("cifar10")
    least = max(1, count // 5)
    return replace(
        data,
        train_inputs=data.train_inputs[:count],
        train_labels=data.train_labels[:count],
        test_inputs=data.test_inputs[:least],
        test_labels=data.test_labels[:least],
    )


def time_second_order(images: int, *, made_up: bool, device: str) -> None:
    os.environ["DPCOHORT_KEEP_FEATURES"] = "0"
    options = load_recipe("beyond-cifar10-open").base.model.options
    more = {name: value for name, value in options.items() if name not in ("features", "bias")}
    some = some_images(images, made_up=made_up)
    shape, count = some.input_shape, len(some) + len(some.test_labels)
    print(f"{count:,} images, {torch.get_num_threads()} threads: {more}")
    features, built = told(
        "moments of 8,000 synthetic images", lambda: OrientedFeatures(shape, **more)
    )
    found, spent = told("features", lambda: precompute_features(some, features, device=device))
    plain = {**more, "whitening": "none"}
    few = torch.from_numpy(some.normalised(some.train_inputs[:200]))
    ways = [kind(shape, **plain) for kind in (OrientedFeatures, WrittenOut)]
    before, spans = torch.get_num_threads(), [0.0, 0.0]
    torch.set_num_threads(1)
    with torch.no_grad():
        for start in range(0, 200, 50):
            answers = []
            for i, way in enumerate(ways):
                started = time.process_time()
                answers.append(way(few[start : start + 50]))
                spans[i] += time.process_time() - started
    torch.set_num_threads(before)
    apart = float((answers[0] - answers[1]).abs().max())
    quick, slow = (1e3 * span / 200 for span in spans)
    print(
        f"before whitening, one thread: {quick:.2f} ms an image, written out {slow:.2f} ms", end=" "
    )
    print(f"({slow / quick:.1f}x), {apart:.1e} apart at most")
    print(f"in all {(built + spent) / 60:.1f} minutes of processor for {found.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--images", type=int, default=50_000, help="training images, for --time")
    parser.add_argument("--made-up", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="DATA")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-search", action="store_true")
    given = parser.parse_args()
    if given.time:
        time_second_order(given.images, made_up=given.made_up, device=given.device)
        return
    for name in given.names:
        config = load_config(CONFIGS / f"{name}-features.toml")
        data = configured_data(config)
        print(f"{name}: {config.model.options}", flush=True)
        if not given.no_search:
            search(config, data)
        report(config, data, given.seeds)


if __name__ == "__main__":
    try:
        main()
    except DataMissingError as error:  # it says where the data belongs
        sys.exit(f"error: {error}\nWithout it: --time --made-up")
