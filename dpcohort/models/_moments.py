# SPDX-License-Identifier: Apache-2.0
"""Linear models whose records send second moments beside their gradient, for Newton steps.

A row x contributes κ x xᵀ (and κ x for a bias) to the same update, clip and noise as the gradient
of its loss: one Gaussian mechanism of both, which every accountant, ledger, guard and mask takes as
it takes any update. Within public bounds |x| ≤ R the two share the clip C by Pythagoras: κ² R⁴ / C²
of the squared length, and so of the budget, buys the moments. The server preconditions its steps
with their mean over all rounds (``Preconditioner``).

    DP Newton: Ganesh, Haghifam, Steinke, Thakurta, NeurIPS 2023; AdaSSP: Wang, UAI 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from dpcohort._validate import number
from dpcohort.errors import InputError


class SecondMoments(nn.Module):
    """A linear model; while it trains, its last output has κ x xᵀ as gradient, whatever x is.

    The weight M of the layer ``moments`` enters as κ xᵀ(Mx + m). What the model predicts does not
    depend on it, so the server keeps there what it knows: the noised mean of x xᵀ, and of x.

    Args:
        first: what flattens a record.
        linear: of the flat record.
        scale: κ.

    Example:
        >>> model = SecondMoments(nn.Flatten(), nn.Linear(2, 1), scale=0.5)
        >>> model(torch.ones(3, 2)).shape, model.eval()(torch.ones(3, 2)).shape
        (torch.Size([3, 2]), torch.Size([3, 1]))
    """

    def __init__(self, first: nn.Module, linear: nn.Linear, *, scale: float) -> None:
        super().__init__()
        self.scale = number("second_moments", scale, above=0, at_most=_LARGEST)
        width = linear.in_features
        if width > WIDEST:
            raise InputError.because(
                f"second_moments are {width:,} by {width:,} numbers here, and every update carries "
                f"them: take them for at most {WIDEST} inputs, or leave model.options out."
            )
        self.moments = nn.Linear(width, width, bias=linear.bias is not None)
        for parameter in self.moments.parameters():
            nn.init.zeros_(parameter)
        # By the names that they have in the model without moments.
        self.add_module("0", first)
        self.add_module("1", linear)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs, and one more while it trains."""
        first, linear = self.get_submodule("0"), self.get_submodule("1")
        rows = first(inputs)
        outputs: Tensor = linear(rows)
        if not self.training:
            return outputs
        moments = (rows * self.moments(rows)).sum(1, keepdim=True) * self.scale
        return torch.cat([outputs, moments], 1)


@dataclass(frozen=True)
class MomentsLoss:
    """The loss of the outputs, plus the output whose gradient is the second moments.

    Attributes:
        of_rows: the loss of each row.
    """

    of_rows: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One number for each row, to be differentiated and for nothing else."""
        return self.of_rows(outputs[:, :-1], targets) + outputs[:, -1]


def loss_in_training(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss that a model trains by: its own, with that of second moments where it has any."""
    has_moments = any(isinstance(part, SecondMoments) for part in model.modules())
    return MomentsLoss(loss) if has_moments else loss


def without_second_moments(model: nn.Module) -> nn.Module:
    """The model that predicts: without what only its training needs; parameters keep their names.

    Example:
        >>> model = SecondMoments(nn.Flatten(), nn.Linear(2, 1), scale=0.5)
        >>> list(without_second_moments(model).state_dict())
        ['1.weight', '1.bias']
    """
    if not isinstance(model, SecondMoments):
        return model
    return nn.Sequential(model.get_submodule("0"), model.get_submodule("1")).train(model.training)


def with_second_moments(model: nn.Module, scale: float) -> SecondMoments:
    """A linear model of records as they are, with second moments.

    Raises:
        InputError: the model is another one.
    """
    parts = list(model.children())
    if [type(part) for part in parts] != [nn.Flatten, nn.Linear]:
        raise InputError.because(
            "second_moments are of a linear model of the records themselves; features have none. "
            "Leave one of the two options out."
        )
    return SecondMoments(parts[0], cast(nn.Linear, parts[1]), scale=scale)


#: Inputs of which the second moments still are an update of reasonable size.
WIDEST = 400
_LARGEST = 1e6
