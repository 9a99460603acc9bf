# SPDX-License-Identifier: Apache-2.0
"""The whole state of a training between two rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpcohort.errors import InputError

__all__ = ["EngineState"]


@dataclass
class EngineState:
    """All that a training carries from round to round; with the plan and the seed it is complete.

    An engine changes it in place, and only as the last thing of a round: between two rounds it can
    be saved, and a training that goes on from the saved one gives the same bytes (on a CPU).

    Attributes:
        parameters: the global model w_{t^g,0} as one vector [D].
        next_round: the round to do next, t^g.
        momentum: the server's momentum [D], None before the first use.
        average: the average of iterates [D], None if none is kept.
        memory: what the aggregation remembers [rows, D], None if it remembers nothing.

    Example:
        >>> state = EngineState(torch.zeros(2), next_round=3)
        >>> EngineState.from_arrays(state.to_arrays()).next_round
        3
    """

    parameters: Tensor
    next_round: int = 0
    momentum: Tensor | None = None
    average: Tensor | None = None
    memory: Tensor | None = None

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Named arrays for a file without code in it (safetensors, npz)."""
        arrays = {
            "parameters": self.parameters.detach().cpu().numpy().copy(),
            "next_round": np.asarray(self.next_round, dtype=np.int64),
        }
        for name in ("momentum", "average", "memory"):
            value: Tensor | None = getattr(self, name)
            if value is not None:
                arrays[name] = value.detach().cpu().numpy().copy()
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray[Any, Any]], *, device: torch.device | str = "cpu"
    ) -> EngineState:
        """The state that ``to_arrays`` wrote.

        Raises:
            InputError: something is missing or does not fit together.
        """
        missing = [name for name in ("parameters", "next_round") if name not in arrays]
        if missing:
            raise InputError("state", given=sorted(arrays), allowed=f"arrays with {missing[0]!r}")
        vectors: dict[str, Tensor] = {}
        for name in ("parameters", "momentum", "average"):
            if name in arrays:
                vectors[name] = torch.tensor(np.asarray(arrays[name]), device=device)
        if any(v.shape != vectors["parameters"].shape or v.dim() != 1 for v in vectors.values()):
            shapes = {name: tuple(v.shape) for name, v in vectors.items()}
            raise InputError("state", given=shapes, allowed="vectors of one length")
        memory = None
        if "memory" in arrays:
            memory = torch.tensor(np.asarray(arrays["memory"]), device=device)
            if memory.dim() != 2 or memory.shape[1] != vectors["parameters"].numel():
                raise InputError(
                    "memory of the state",
                    given=tuple(memory.shape),
                    allowed=f"rows of length {vectors['parameters'].numel()}",
                )
        return cls(
            parameters=vectors["parameters"],
            next_round=int(np.asarray(arrays["next_round"]).item()),
            momentum=vectors.get("momentum"),
            average=vectors.get("average"),
            memory=memory,
        )

    def clone(self) -> EngineState:
        """An independent copy."""
        return EngineState(
            parameters=self.parameters.clone(),
            next_round=self.next_round,
            momentum=None if self.momentum is None else self.momentum.clone(),
            average=None if self.average is None else self.average.clone(),
            memory=None if self.memory is None else self.memory.clone(),
        )
