# SPDX-License-Identifier: Apache-2.0
"""Your own arrays and your own network; whoever holds which record is said by a partition."""

import numpy as np
from torch import nn

from dpcohort import Population, Training, make_plan, train
from dpcohort.data import Dataset, dirichlet_partition

rng = np.random.default_rng(0)
inputs = rng.normal(size=(2_000, 12)).astype(np.float32)
labels = (inputs[:, :3].sum(1) > 0).astype(np.int64) + 2 * (inputs[:, 3] > 1).astype(np.int64)
data = Dataset(
    name="mine",
    train_inputs=inputs[:1_600],
    train_labels=labels[:1_600],
    test_inputs=inputs[1_600:],
    test_labels=labels[1_600:],
    classes=4,
    test_public=True,  # so that the accuracy may be said; training is private unless public=True
)

model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
dimension = sum(parameter.numel() for parameter in model.parameters())

sizes = [200] * 8
partition = dirichlet_partition(data.train_labels, sizes=sizes, alpha=0.5, rng=rng)
clients = Population.from_arrays(sizes=sizes, epsilon=[0.5, 0.5, 1, 1, 2, 4, 8, 8], delta=1e-5)
training = Training(rounds=60, cohort_size=4, batch_size=50, dimension=dimension)
run = train(make_plan(clients, training, seed=0), model, data, partition=partition, seed=0)
print(f"{dimension} parameters, test accuracy {run.test_accuracy:.1%}")
