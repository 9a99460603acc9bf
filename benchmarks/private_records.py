# SPDX-License-Identifier: Apache-2.0
"""How long 1,000 records take in a private run, by the way in which a model is computed.

``python benchmarks/private_records.py``. One thread; the median of five; the sums of clipped
gradients on the lattice, without the noise.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine import Lattice
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine.clipping import cross_entropy

_WIDTH, _RECORDS, _TURNS = 30, 1000, 5


class Known(nn.Module):
    """A class of somebody's own that does nothing unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(_WIDTH, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        outputs: Tensor = self.last(F.relu(self.first(x)))
        return outputs


class Recurrent(nn.Module):
    """A recurrent layer over the numbers of a record."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.GRU(5, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        outputs: Tensor = self.last(self.first(x.view(len(x), -1, 5))[0][:, -1])
        return outputs


class Deciding(Known):
    """What it does depends on numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        return super().forward(x if float(x.sum()) > 0 else -x)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of somebody's own."""
    return (outputs[:, 0] - targets).square()


def main() -> None:
    torch.set_num_threads(1)
    plain = nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, 2))
    cases = [
        ("known layers", plain, cross_entropy),
        ("a `forward` of known operations", Known(), cross_entropy),
        ("a loss of one's own", plain, squared),
        ("a recurrent layer", Recurrent(), cross_entropy),
        ("a `forward` that asks for numbers", Deciding(), cross_entropy),
    ]
    ways = {"stacked": "1, shared passes", "vmap": "2, 32 at a time", "loop": "2, one by one"}
    x, y = torch.randn(_RECORDS, _WIDTH), torch.arange(_RECORDS) % 2
    lattice, rows = Lattice(1.0, 1.0), np.arange(_RECORDS)
    for name, model, loss in cases:
        isolated = IsolatedModel(model, loss, x[:3], y[:3])
        weights = isolated.layout.flatten(model)
        times = []
        for _ in range(_TURNS):
            started = time.perf_counter()
            isolated.clipped_sum(weights, lattice, rows, lambda at: (x[at], y[at]), 128)
            times.append(time.perf_counter() - started)
        way = ways.get(isolated.path.kind, "3, a process for each")
        print(f"| {name} (way {way}) | {float(np.median(times)):.2g} |")


if __name__ == "__main__":
    main()
