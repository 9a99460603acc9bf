# SPDX-License-Identifier: Apache-2.0
"""Predict a number within public bounds, with a loss of your own; beside the best constant."""

import numpy as np
import torch

from dpcohort import Population, Training, make_plan, plugin, train
from dpcohort.data import dataset_from_arrays
from dpcohort.engine import Optimiser
from dpcohort.tasks import Task


@plugin("loss")
def log_cosh(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One number an example; targets are scaled to -1..1 by the bounds."""
    away = 4 * (outputs[:, 0] - targets)
    return away + torch.nn.functional.softplus(-2 * away) - np.log(2)


# Days in hospital of 1,600 patients, from six measurements; nobody stays longer than 30.
rng = np.random.default_rng(0)
inputs = rng.uniform(-1, 1, size=(2_000, 6))
days = np.clip(12 + 8 * inputs[:, 0] - 5 * inputs[:, 1] + rng.normal(0, 2, 2_000), 0, 30)
stay = Task(kind="regression", outputs=1, bounds=(0.0, 30.0), loss="__main__:log_cosh")
data = dataset_from_arrays(
    "stays",
    train_inputs=inputs[:1_600],
    train_labels=days[:1_600],
    test_inputs=inputs[1_600:],
    test_labels=days[1_600:],
    task=stay,
    public=True,  # made up: without it the run is private, and tells nothing of the test records
)

clients = Population.from_arrays(sizes=[200] * 8, epsilon=[0.5, 0.5, 1, 1, 2, 4, 8, 8], delta=1e-5)
training = Training(rounds=80, cohort_size=4, batch_size=100, clip=1.0, dimension=7)
plan = make_plan(clients, training, seed=0)
steps = Optimiser(local_step=0.1, average_decay=0.9)
run = train(plan, "logistic", data, optimiser=steps, seed=0, device="cpu")

for name, value in run.judged["metrics"].items():
    print(f"{name:14} {value:8.3g}   best constant {run.judged['trivial'][name]:8.3g}")
print(run.check.sentence)
print("\n".join(run.judged["warnings"]))
