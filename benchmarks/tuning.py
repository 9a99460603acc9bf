# SPDX-License-Identifier: Apache-2.0
"""Are settings from generated data as good as a search on private records? Prints the table.

Of each set: the settings that `dpcohort new` wrote before there was tuning, those that the rule
suggests without a search, those of `dpcohort tune --source none`, and those of the same search on a
fifth of each client's records held out, which looks at private records and pays nothing. All are
then trained on all training records and tested on the test records, with the same seeds.

    python benchmarks/tuning.py digits heart-disease
    python benchmarks/tuning.py loans.toml votes.toml   # as in benchmarks/real_tables.py
    python benchmarks/tuning.py fashion-mnist --data-dir ../shared/data
    python benchmarks/tuning.py digits --charged 5      # what charged tuning gives instead
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from dpcohort.accounting._charges import write_charge
from dpcohort.config import Config, commented_config, load_config, loads_config
from dpcohort.runs import (
    configured_data,
    configured_job,
    configured_population,
    held_out_within,
    mean_interval,
)
from dpcohort.tuning import changes_for, tune, tune_charged
from dpcohort.tuning._search import Bench, counted, descend, scored, start_of

#: What `dpcohort new` wrote whatever the data.
_BEFORE = [
    "training.rounds=100",
    "training.sampling_rate=0.1",
    "training.clip=1.0",
    "optimiser.learning_rate=1.0",
    "optimiser.average_decay=0.8",
    "selection.eta=auto",
]


def config_of(name: str, data_dir: str | None) -> Config:
    """The configuration of a set, with the settings of before."""
    if name.endswith(".toml"):
        return load_config(name).with_overrides(_BEFORE)
    if name in ("digits", "heart-disease"):
        return loads_config(commented_config(name)).with_overrides(_BEFORE)
    if name != "fashion-mnist":
        raise SystemExit(f"{name} is neither a set of this benchmark nor a config (.toml).")
    return loads_config(commented_config("digits")).with_overrides(
        [
            *_BEFORE,
            "population.total_size=60_000",
            "population.count=100",
            "population.epsilon=uniform-0-1",
            "training.dimension=7850",
            "data.name=fashion-mnist",
            *([f"data.dir={json.dumps(str(Path(data_dir).resolve()))}"] if data_dir else []),
        ]
    )


def searched(config: Config, seeds: int, rounds: int) -> list[str]:
    """The same search on held-out private records."""
    data = configured_data(config)
    rest, clients, partition = held_out_within(config, data, 0.2)
    samples = [("held out", seed, rest) for seed in range(seeds)]
    bench = Bench(config, clients, samples, partition=partition, device="cpu")
    population = configured_population(config, data)
    start = start_of(config, data, population, rounds)
    found, _ = descend(bench, start, most_rounds=rounds)
    return changes_for(found, config, population)


def tested(config: Config, seeds: int) -> list[float]:
    """Share of the best constant's loss that the model of each seed saves, in per cent."""
    data = configured_data(config)
    config = config.with_overrides([f"run.evaluate_every={config.training.rounds}"])
    jobs = [configured_job(config, data=data, shift=i, device="cpu") for i in range(seeds)]
    return [100 * found for job in jobs for found in scored([job], data)]


def charged(config: Config, repetitions: int, rounds: int) -> list[float]:
    """Loss saved after charged tuning with half of each budget, trained with the other half."""
    found = []
    for seed in range(repetitions):
        seeded = config.with_overrides([f"run.seed={seed}"])
        tuned = tune_charged(seeded, share=0.5, trials=10.0, most_rounds=rounds, device="cpu")
        assert tuned.charge is not None
        with tempfile.TemporaryDirectory() as folder:
            write_charge(place := Path(folder) / "charge.json", tuned.charge)
            paid = f'charges.{tuned.charge.id}="{place}"'
            changes = [*tuned.changes, paid, *tuned.record()]
            found += tested(seeded.with_overrides(changes), 1)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=5, help="of the final training")
    parser.add_argument("--repetitions", type=int, default=2, help="of each setting in a search")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--charged", type=int, help="only charged tuning, so many times")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.charged:
        for name in given.sets:
            column = charged(config_of(name, given.data_dir), given.charged, given.rounds)
            found = mean_interval(column)
            spread = (found.high - found.low) / 2
            print(f"{Path(name).stem}, charged: {found.mean:.1f} ± {spread:.1f}", flush=True)
        return
    print("| set | before | suggested | tuned, source none | search on private records | gap |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in given.sets:
        config = config_of(name, given.data_dir)
        data = configured_data(config)
        config = counted(config, data)
        population = configured_population(config, data)
        began = time.monotonic()
        tuned = list(
            tune(config, seeds=given.repetitions, most_rounds=given.rounds, device="cpu").changes
        )
        seconds = time.monotonic() - began
        private = searched(config, given.repetitions, given.rounds)
        suggested = changes_for(start_of(config, data, population), config, population)
        columns = [
            tested(config.with_overrides(c), given.seeds) for c in ([], suggested, tuned, private)
        ]
        cells = []
        for column in columns:
            found = mean_interval(column)
            cells.append(f"{found.mean:.1f} ± {(found.high - found.low) / 2:.1f}")
        gap = np.mean(columns[2]) - np.mean(columns[3])
        print(f"| {Path(name).stem} | {' | '.join(cells)} | {gap:+.1f} |")
        print(
            f"  tuned in {seconds:.0f} s: {' '.join(tuned)}\n  search: {' '.join(private)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
