# SPDX-License-Identifier: Apache-2.0
"""How the step size of ``dpcohort demo`` was chosen: on held-out training records.

``python benchmarks/demo_step_size.py`` holds a fifth of the digits' training records out, trains
the four settings of the demo on the others with each step size and prints the accuracy on the held
out ones: mean over five seeds. The test set is not loaded into any training. The demo takes the
best step size of ``tight noise, unbiased``, the stronger of the two baselines, for all settings.
"""

from __future__ import annotations

import numpy as np

from dpcohort.cli._demo import SETTINGS, demo_config
from dpcohort.data import Dataset, load_dataset
from dpcohort.runs import configured_job, mean_interval, train_side_by_side

STEP_SIZES = (0.03, 0.1, 0.3, 1.0, 3.0)
SEEDS = 5


def held_out() -> Dataset:
    digits = load_dataset("digits")
    order = np.random.default_rng(0).permutation(len(digits))
    held, rest = np.split(order, [len(digits) // 5])
    return Dataset(
        name="digits held out",
        train_inputs=digits.train_inputs[rest],
        train_labels=digits.train_labels[rest],
        test_inputs=digits.train_inputs[held],
        test_labels=digits.train_labels[held],
        classes=digits.classes,
        normalisation=digits.normalisation,
    )


def main() -> None:
    data = held_out()
    print(f"{'step size':<28}" + "".join(f"{size:>14g}" for size in STEP_SIZES))
    for name, (accountant, rule) in SETTINGS.items():
        row = f"{name:<28}"
        for size in STEP_SIZES:
            config = demo_config(rounds=60).with_overrides(
                [
                    f"privacy.accountant={accountant}",
                    f"selection.rule={rule}",
                    f"optimiser.learning_rate={size}",
                    "population.total_size=",
                    "run.evaluate_every=60",
                    "run.device=cpu",
                ]
            )
            jobs = [configured_job(config, data=data, shift=seed) for seed in range(SEEDS)]
            found = mean_interval([run.test_accuracy for run in train_side_by_side(jobs)])
            row += f"{100 * found.mean:>8.1f} ±{100 * found.half_width:>4.1f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
