# SPDX-License-Identifier: Apache-2.0
"""Fine-tune privately from what public records have taught: python examples/fine_tune.py

The digits 0 to 4 are public here: a small encoder is trained on them as usual. The digits 5 to 9 are
private, held by ten clients with strict budgets; no record of theirs is seen before. Three ways to
train on them at the same budgets: from scratch, all weights from the file on, and the head alone on
the frozen encoder, whose features are computed once. Prints the accuracy of each, over five seeds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from dpcohort import Population, Training, make_plan
from dpcohort.data import Dataset, dataset_from_arrays, load_dataset
from dpcohort.engine import ConstantStep, Optimiser
from dpcohort.models import build_model
from dpcohort.runs import train

OPTIONS = {"hidden": [32]}
ENCODER = ("1.weight", "1.bias")  # of the mlp: the hidden layer
SOURCE = "the public digits 0 to 4"
SEEDS = 5


def digits_between(low: int, high: int) -> Dataset:
    """The digits from one number to another, as classes of their own."""
    data = load_dataset("digits")
    parts = {}
    for part in ("train", "test"):
        inputs, labels = getattr(data, f"{part}_inputs"), getattr(data, f"{part}_labels")
        chosen = (labels >= low) & (labels <= high)
        parts[f"{part}_inputs"] = inputs[chosen].astype(np.float32) / 16
        parts[f"{part}_labels"] = labels[chosen] - low
    return dataset_from_arrays(f"digits {low} to {high}", classes=high - low + 1, **parts)


def trained_in_public(data: Dataset) -> nn.Module:
    """A model trained as usual, without privacy."""
    model = build_model("mlp", input_shape=data.input_shape, classes=5, seed=0, options=OPTIONS)
    inputs, labels = torch.tensor(data.train_inputs), torch.tensor(data.train_labels)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return model


def accuracy(private: Dataset, **start: object) -> float:
    """Mean test accuracy over the seeds of training with the same clients and budgets."""
    dimension = 5 * 32 + 5 if "frozen" in start else 64 * 32 + 32 + 5 * 32 + 5
    epsilon = np.geomspace(0.3, 2.0, 10)
    clients = Population.from_arrays(sizes=[len(private) // 10] * 10, epsilon=epsilon, delta=1e-4)
    settings = Training(rounds=30, cohort_size=5, sampling_rate=1.0, dimension=dimension)
    plan = make_plan(clients, settings, selection="unbiased", seed=0)
    found = [
        train(
            plan,
            "mlp",
            private,
            model_options=OPTIONS,
            optimiser=Optimiser(local_step=ConstantStep(1.0)),
            seed=seed,
            device="cpu",
            **start,
        ).test_accuracy
        for seed in range(SEEDS)
    ]
    return float(np.mean(found))


def main() -> None:
    """Train in public, then privately in three ways."""
    public, private = digits_between(0, 4), digits_between(5, 9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.safetensors"
        weights = trained_in_public(public).state_dict()
        save_file({name: weights[name] for name in ENCODER}, path)
        given = {"weights": path, "weights_source": SOURCE}
        scratch = accuracy(private)
        whole = accuracy(private, **given)
        head = accuracy(private, **given, frozen=["1"])
    print(f"from scratch                           {100 * scratch:5.1f} %")
    print(f"all weights, from the public encoder   {100 * whole:5.1f} %")
    print(f"the head alone, on the frozen encoder  {100 * head:5.1f} %")
    print(f"gain of the frozen encoder             {100 * (head - scratch):+5.1f} points")


if __name__ == "__main__":
    main()
