# SPDX-License-Identifier: Apache-2.0
"""Fine-tune privately from what a hundred public digits have taught.

The other digits are private, held by ten clients with strict budgets, and never seen before. The
step is 1 from scratch and 0.3 from the file: at larger ones what was known is forgotten.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from dpcohort import Population, Training, make_plan, train
from dpcohort.data import dataset_from_arrays, load_dataset
from dpcohort.engine import Optimiser
from dpcohort.models import build_model, parameter_count

digits, options = load_dataset("digits"), {"hidden": [64]}
inputs, labels = digits.train_inputs.astype(np.float32) / 16, digits.train_labels
seen, classes = torch.from_numpy(inputs[:100]), torch.tensor(labels[:100])
test = {
    "test_inputs": digits.test_inputs.astype(np.float32) / 16,
    "test_labels": digits.test_labels,
}
rest = {"train_inputs": inputs[100:], "train_labels": labels[100:]}
private = dataset_from_arrays("private digits", **rest, **test, classes=10, test_public=True)

public = build_model("mlp", input_shape=(1, 8, 8), classes=10, seed=0, options=options)
optimiser = torch.optim.Adam(public.parameters(), lr=0.01, weight_decay=1e-3)
for _ in range(200):  # in public, without noise
    optimiser.zero_grad()
    cross_entropy(public(seen), classes).backward()
    optimiser.step()
right = public(torch.from_numpy(private.test_inputs)).argmax(1).numpy() == private.test_labels
print(f"the public network as it is   {right.mean():.1%}")

clients = Population.from_arrays(sizes=[134] * 10, epsilon=np.geomspace(0.3, 2, 10), delta=1e-4)
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "public.safetensors"
    save_file(public.state_dict(), file)
    known = {"weights": file, "weights_source": "100 public digits"}
    ways = {
        "private, from scratch": (1.0, {}),
        "private, all its weights": (0.3, known),
        "private, the encoder frozen": (0.3, {**known, "frozen": ["1"]}),
    }
    for name, (step, start) in ways.items():
        trained = 64 * 10 + 10 if "frozen" in start else parameter_count(public)
        settings = Training(rounds=20, cohort_size=5, sampling_rate=1.0, dimension=trained)
        run = train(
            make_plan(clients, settings, seed=0), "mlp", private, model_options=options,
            optimiser=Optimiser(local_step=step), seed=0, device="cpu", **start,
        )  # fmt: skip
        print(f"{name:<29} {run.test_accuracy:.1%}")
