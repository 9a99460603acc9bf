# SPDX-License-Identifier: Apache-2.0
"""Models, losses and batches of persons: what is made of several rows counts as one example.

A batch of persons is [persons, most, ...], with as many rows of each as anybody may bring. Where a
person has fewer, its first row stands in the empty places and their targets are null: -100 for
whole numbers, NaN for others. A null row has a loss of exactly 0, and so no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import BoolArray
from dpcohort.data import Persons

#: One number for each example, from outputs and targets.
RowLoss = Callable[[Tensor, Tensor], Tensor]
_NULL = -100


class PersonModel(nn.Module):
    """A model of rows as a model of persons: the same to each of their rows.

    Args:
        model: it is shared.

    Example:
        >>> PersonModel(nn.Linear(3, 2))(torch.zeros(5, 4, 3)).shape
        torch.Size([5, 4, 2])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [persons, most, ...] of inputs [persons, most, ...]."""
        outputs: Tensor = self.model(inputs.flatten(0, 1))
        return outputs.reshape(*inputs.shape[:2], *outputs.shape[1:])


@dataclass(frozen=True)
class PersonLoss:
    """The loss of a person: the sum of its rows' losses, or their mean.

    Attributes:
        of_rows: the loss of each row.
        averaged: whether it is the mean of the rows that are there.

    Example:
        >>> loss = PersonLoss(lambda outputs, targets: (outputs[:, 0] - targets) ** 2)
        >>> loss(torch.zeros(1, 3, 1), torch.tensor([[1.0, 2.0, float("nan")]]))
        tensor([5.])
    """

    of_rows: RowLoss
    averaged: bool = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each person, from [persons, most, ...]."""
        rows = targets.flatten(0, 1)
        null = is_null(rows)
        # What stands in the place of a null target must be a target, or 0 times NaN would come out.
        filler = rows.new_zeros(())
        shaped = null.view(-1, *[1] * (rows.dim() - 1))
        losses = self.of_rows(outputs.flatten(0, 1), torch.where(shaped, filler, rows))
        losses = torch.where(null, losses.new_zeros(()), losses).view(targets.shape[:2])
        total = losses.sum(1)
        if not self.averaged:
            return total
        return total / (~null).view(targets.shape[:2]).sum(1).clamp(min=1)


class PersonBatches:
    """Gathers the rows of persons, as many of each as anybody may bring.

    Args:
        persons: whose each row is.
        device: where the rows are.
        unusable: which rows contribute nothing. SENSITIVE.

    Attributes:
        unusable: which persons have no row that can be used; None if all have. SENSITIVE.

    Example:
        >>> batches = PersonBatches(Persons(rows=np.array([[0, 2], [1, -1]])))
        >>> x, y = torch.tensor([[5.0], [6.0], [7.0]]), torch.tensor([0, 1, 2])
        >>> inputs, targets = batches.gather(torch.tensor([0, 1]), lambda rows: (x[rows], y[rows]))
        >>> inputs[:, :, 0].tolist(), targets.tolist()
        ([[5.0, 7.0], [6.0, 6.0]], [[0, 2], [1, -100]])
    """

    def __init__(
        self,
        persons: Persons,
        device: torch.device | str = "cpu",
        unusable: BoolArray | None = None,
    ) -> None:
        rows, usable = persons.rows, np.ones(len(persons), np.bool_)
        if unusable is not None:
            rows, usable = persons.without(unusable)
        self.unusable = None if usable.all() else ~usable
        self._averaged = persons.person_rows == "mean"
        filled = np.where(rows < 0, np.maximum(rows[:, :1], 0), rows)
        self._members = torch.as_tensor(filled, device=device)
        self._null = torch.as_tensor(rows < 0, device=device)

    def gather(
        self, persons: Tensor, rows_of: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets [persons, most, ...], from those of rows."""
        members = self._members.index_select(0, persons)
        inputs, targets = (
            each.reshape(*members.shape, *each.shape[1:]) for each in rows_of(members.reshape(-1))
        )
        null = self._null.index_select(0, persons)
        null = null.view(*null.shape, *[1] * (targets.dim() - 2))
        return inputs, torch.where(null, null_like(targets), targets)

    def loss(self, of_rows: RowLoss) -> PersonLoss:
        """The loss of a person, from that of its rows."""
        return PersonLoss(of_rows, averaged=self._averaged)


def is_null(targets: Tensor) -> Tensor:
    """Which targets [rows, ...] are null.

    Example:
        >>> is_null(torch.tensor([3, -100]))
        tensor([False,  True])
    """
    each = targets.isnan() if targets.is_floating_point() else targets == _NULL
    return each if each.dim() == 1 else each.flatten(1).all(1)


def null_like(targets: Tensor) -> Tensor:
    """A null target of this type.

    Example:
        >>> null_like(torch.zeros(2, dtype=torch.int64))
        tensor(-100)
    """
    return targets.new_tensor(float("nan") if targets.is_floating_point() else _NULL)
