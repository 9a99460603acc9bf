# SPDX-License-Identifier: Apache-2.0
"""What fixed features reach on MNIST and Fashion-MNIST, and how their settings were chosen.

``python benchmarks/features.py`` reads ``examples/configs/*-features.toml``. For each it first
holds a tenth of the training records out, trains on the others with each centring and step size
and prints the accuracy on those held out; nothing is taken from it automatically, so a config that
does not hold the best setting shows. Then it trains the config's grid on all training records and
prints the accuracy on the test set. Features are computed once a data set. The search is not
charged to the budgets, as in the paper.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcohort.config import Config, load_config
from dpcohort.data import Dataset
from dpcohort.models import split_features, without_features
from dpcohort.runs.configured import combinations, configured_data, configured_job
from dpcohort.runs.evaluation import Interval, mean_interval
from dpcohort.runs.job import Job
from dpcohort.runs.training import train_side_by_side

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="DATA")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-search", action="store_true")
    given = parser.parse_args()
    for name in given.names:
        config = load_config(CONFIGS / f"{name}-features.toml")
        data = configured_data(config)
        print(f"{name}: {config.model.options}", flush=True)
        if not given.no_search:
            search(config, data)
        report(config, data, given.seeds)


if __name__ == "__main__":
    main()
