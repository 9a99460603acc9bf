# SPDX-License-Identifier: Apache-2.0
"""Where each parameter of a model lies in one flat vector of length D.

Engines keep a model as one vector, and the weights of many draws as the rows of one matrix; a layer
sees its part of every row as a view.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpcohort.errors import InputError

__all__ = ["FlatLayout", "Span"]


@dataclass(frozen=True)
class Span:
    """One parameter's place: entries ``start`` to ``stop`` of the vector, in this shape."""

    start: int
    stop: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.stop - self.start

    def of(self, matrix: Tensor) -> Tensor:
        """This parameter of every row of a [rows, D] matrix, as a view [rows, *shape]."""
        return matrix[:, self.start : self.stop].view(matrix.shape[0], *self.shape)


class FlatLayout:
    """The trained parameters of a model, in the order of ``named_parameters``.

    Example:
        >>> layout = FlatLayout(nn.Linear(3, 2))
        >>> layout.dimension, layout.spans["bias"].start
        (8, 6)
    """

    def __init__(self, model: nn.Module) -> None:
        self.spans: dict[str, Span] = {}
        start = 0
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            stop = start + parameter.numel()
            self.spans[name] = Span(start, stop, tuple(parameter.shape))
            start = stop
        self.dimension = start
        if start == 0:
            raise InputError.because("the model has no parameter that can be trained.")

    def flatten(self, model: nn.Module) -> Tensor:
        """A copy of the model's trained parameters as one vector."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.spans])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of one vector by parameter name, as ``torch.func.functional_call`` takes them."""
        return {name: span.of(vector[None])[0] for name, span in self.spans.items()}

    def assign(self, model: nn.Module, vector: Tensor) -> None:
        """Write a vector back into a model's parameters."""
        if vector.numel() != self.dimension:
            raise InputError(
                "parameters",
                given=f"{vector.numel()} numbers",
                allowed=f"{self.dimension} numbers, one for each trained parameter",
            )
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, span in self.spans.items():
                parameters[name].copy_(vector[span.start : span.stop].view(span.shape))

    def __len__(self) -> int:
        return len(self.spans)
