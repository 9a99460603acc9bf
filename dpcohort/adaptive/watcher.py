# SPDX-License-Identifier: Apache-2.0
"""Keeps a sketch of each client's last noised update, for rules that look at updates.

Updates carry their noise when the server sees them, so a sketch is post-processing and free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import FloatArray
from dpcohort.aggregation import AggregationRule, Cohort
from dpcohort.aggregation.rule import combine_round

__all__ = ["WatchingAggregation"]

_NAME = "adaptive.update."


class WatchingAggregation:
    """An aggregation rule that looks at the updates before it passes them on.

    A sketch adds every coordinate, with a random sign, to one of ``width`` cells; signs and cells
    are public. Inner products of sketches are those of the updates in the mean (count sketch,
    Charikar et al., 2002).

    Args:
        inner: what combines the updates.
        width: numbers kept of an update; shorter updates are kept whole.
    """

    def __init__(self, inner: AggregationRule, *, width: int = 512) -> None:
        self._inner, self._width = inner, width
        self._cells: tuple[Tensor, Tensor] | None = None
        self.sketches: dict[int, FloatArray] = {}

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The inner rule's update; sketches of the draws' updates are kept."""
        return self.combine_remembering(updates, cohort, None)[0]

    def combine_remembering(
        self, updates: Tensor, cohort: Cohort, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The same, for an inner rule that carries something from round to round."""
        sketches = self._sketch(updates)
        for row, client in enumerate(cohort.clients.tolist()):
            self.sketches[client] = sketches[row]
        return combine_round(self._inner, updates, cohort, memory)

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Named arrays for a checkpoint."""
        return {f"{_NAME}{client}": sketch for client, sketch in self.sketches.items()}

    def take_arrays(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """What ``to_arrays`` gave; other arrays are left alone."""
        for name, sketch in arrays.items():
            if name.startswith(_NAME):
                self.sketches[int(name.removeprefix(_NAME))] = np.asarray(sketch, np.float64)

    def _sketch(self, updates: Tensor) -> FloatArray:
        dimension = updates.shape[1]
        if dimension <= self._width:
            return np.asarray(updates.double().cpu().numpy(), dtype=np.float64).copy()
        if self._cells is None or self._cells[0].numel() != dimension:
            rng = np.random.default_rng([dimension, self._width])
            cells = torch.as_tensor(rng.integers(0, self._width, dimension))
            signs = torch.as_tensor(2.0 * rng.integers(0, 2, dimension) - 1)
            self._cells = (cells.to(updates.device), signs.to(updates))
        cells, signs = self._cells
        sketch = updates.new_zeros(updates.shape[0], self._width)
        sketch.index_add_(1, cells, updates * signs)
        return np.asarray(sketch.double().cpu().numpy(), dtype=np.float64)
