# SPDX-License-Identifier: Apache-2.0
"""Newton steps of the server from noised second moments (DP Newton); post-processing, no privacy.

Every round's update carries the noised mean A of x xᵀ beside that of the gradient G
(``SecondMoments``). The server averages A over all rounds and steps by ``(A + λ)⁻¹ G``. The noise
of the average has a known spectral norm, about σ √(2p) for p by p entries of deviation σ, and that
is λ: eigenvalues below 0, which only noise can make, count as 0. Where noise drowns A the steps are
plain ones, the shorter the louder it is, and else Newton's: direction by direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpcohort.engine.clipping import FlatLayout
from dpcohort.models._moments import SecondMoments
from dpcohort.tasks import CURVATURES, Task, TaskKind

#: Tensors that are carried from round to round: how many rounds, and the noise of their mean.
KEPT = frozenset(("moments.rounds", "moments.noise"))
#: Least share of the mean eigenvalue that every direction counts with.
_LEAST = 1e-6
#: Variance and mean of a logarithm that are believed of counts.
SPREAD, LOG_OF_MOST = 2.0, 10.0


@dataclass(frozen=True)
class Preconditioner:
    """What makes Newton steps of combined updates.

    Attributes:
        layout: of the model's parameters.
        scale: κ of the model.
        kind: of the task, whose loss has a largest curvature.
    """

    layout: FlatLayout
    scale: float
    kind: TaskKind

    @classmethod
    def of(cls, model: nn.Module, task: Task) -> Preconditioner | None:
        """That of a model; None if it sends no second moments."""
        if not isinstance(model, SecondMoments):
            return None
        return cls(FlatLayout(model), model.scale, task.kind)

    def step(
        self,
        parameters: Tensor,
        update: Tensor,
        kept: dict[str, Tensor],
        noise: float,
        *,
        step_size: float,
    ) -> Tensor:
        """What the parameters move by, downwards; the known moments are in their own places.

        Args:
            parameters: of the model [D].
            update: combined of a round [D], step size times mean gradient.
            kept: tensors by name that are carried from round to round; changed.
            noise: standard deviation of a coordinate of the mean gradient.
            step_size: of the clients' only local step.
        """
        move, noise = update.clone(), noise / self.scale
        mine, moved = self.layout.unflatten(parameters), self.layout.unflatten(move)
        rounds = kept.get("moments.rounds", torch.zeros(()))
        before = rounds * kept.get("moments.noise", torch.zeros(()))
        kept["moments.rounds"] = rounds + 1
        kept["moments.noise"] = torch.hypot(before, torch.tensor(noise)) / (rounds + 1)
        known = {}
        for name in (name for name in self.layout.places if name.startswith("moments.")):
            arrived = moved[name] / (step_size * self.scale)
            moved[name].copy_((mine[name] - arrived) / (rounds + 1))
            known[name] = (mine[name] - moved[name]).double().cpu()
        matrix = _whole(known)
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        ridge = float(kept["moments.noise"]) * math.sqrt(2 * len(matrix))
        least = _LEAST * float(values.clamp(min=0).mean())
        spread = values.clamp(min=0) + max(ridge, least, 1e-30)
        weight, bias = (f"1.{name}" for name in ("weight", "bias"))
        parts = [moved[weight], *([moved[bias][:, None]] if bias in moved else [])]
        gradient = torch.cat(parts, 1).double().cpu() / step_size
        newton = (gradient @ vectors) / spread @ vectors.T
        newton = (newton / self._curvature(mine, matrix)).to(update)
        moved[weight].copy_(newton[:, : moved[weight].shape[1]])
        if bias in moved:
            moved[bias].copy_(newton[:, -1])
        return move

    def _curvature(self, parameters: Mapping[str, Tensor], matrix: Tensor) -> float:
        """The largest of the loss; of counts their mean, as far as noised moments tell it."""
        largest = CURVATURES[self.kind]
        if self.kind != "counts" or "1.bias" not in parameters:
            return largest
        weights = torch.cat([parameters["1.weight"], parameters["1.bias"][:, None]], 1).double()
        weights = weights[0].cpu()
        mean = float(weights @ matrix[-1])
        spread = min(max(float(weights @ matrix @ weights) - mean**2, 0.0), SPREAD)
        return max(largest, math.exp(min(mean + spread / 2, LOG_OF_MOST)))


def _whole(known: Mapping[str, Tensor]) -> Tensor:
    """The matrix of second moments; where there is a bias, of rows that end in a 1."""
    matrix, means = known["moments.weight"], known.get("moments.bias")
    if means is None:
        return matrix
    below = torch.cat([means, means.new_ones(1)])
    return torch.cat([torch.cat([matrix, means[:, None]], 1), below[None]])
