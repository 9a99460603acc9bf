# SPDX-License-Identifier: Apache-2.0
"""A layer with a bank of weights: many models side by side in one forward and backward pass.

The examples of all draws are the rows of one batch. A bank holds [groups, ...] weights; the rows
are split evenly among the groups, in order, and each row meets the weights of its group. Weights
stay outside autograd: on the way back a layer keeps its input and the gradient of its output, and
from these two gets, first, every example's squared gradient norm and, when all layers together
have told the clipping factors, the sum of the clipped gradients. Per-example gradients are only
formed where that is cheaper than doing without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from dpcohort.engine.layout import FlatLayout, Span

__all__ = ["Bank", "BankedLayer", "UnsupportedUseError"]


class UnsupportedUseError(Exception):
    """A layer is used in a way its fast path does not cover; the caller takes the slow one."""


class Bank:
    """What all layers of one pass share: weights, and how rows belong to groups and draws.

    Attributes:
        weights: [groups, D], the models of the pass.
        draws: number of draws; a multiple of the number of groups.
        rows: number of examples; a multiple of the number of draws.
    """

    def __init__(self, weights: Tensor, *, draws: int, rows: int) -> None:
        self.weights = weights
        self.groups = weights.shape[0]
        self.draws = draws
        self.rows = rows
        self.anchor = torch.empty((), device=weights.device, requires_grad=True)

    def by_group(self, values: Tensor) -> Tensor:
        """[rows, ...] as [groups, rows of a group, ...]."""
        return values.reshape(self.groups, self.rows // self.groups, *values.shape[1:])

    def by_draw(self, values: Tensor) -> Tensor:
        """[rows, ...] as [draws, rows of a draw, ...]."""
        return values.reshape(self.draws, self.rows // self.draws, *values.shape[1:])


class BankedLayer(nn.Module, ABC):
    """Base of all banked layers: keeps what one pass needs and nothing longer.

    It has no ``weight``: a model that reaches for one of its layers' parameters itself fails
    loudly while it is being examined, and takes the slow path.
    """

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout) -> None:
        super().__init__()
        self.spans: dict[str, Span] = {
            name: layout.spans[f"{prefix}.{name}" if prefix else name]
            for name, parameter in layer.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        self.bank: Bank | None = None
        self.calls = 0
        self.outputs_per_row = 0

    @classmethod
    @abstractmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Whether this very configuration of a layer has a fast path."""

    @abstractmethod
    def compute(self, inputs: Tensor) -> Tensor:
        """Outputs for inputs of all rows, outside autograd."""

    @abstractmethod
    def input_gradient(self, gradient: Tensor) -> Tensor:
        """Gradient of the loss by the inputs, from that by the outputs."""

    @abstractmethod
    def observe(self, gradient: Tensor) -> Tensor:
        """Keep what the clipped sum will need; squared gradient norm of each row."""

    @abstractmethod
    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> None:
        """Add the sums of clipped gradients, [draws] by factors [draws, rows], to [draws, D]."""

    def bind(self, bank: Bank) -> None:
        """Begin a pass with these weights."""
        self.bank = bank
        self.calls = 0
        self.squared_norms: Tensor | None = None

    def release(self) -> None:
        """End a pass: let go of everything that belongs to single examples."""
        self.bank = None
        self.squared_norms = None
        self._drop()

    @abstractmethod
    def _drop(self) -> None:
        """Forget the activations and gradients of the pass."""

    def weights(self, name: str) -> Tensor | None:
        """The bank's part [groups, *shape] for one parameter, None if the layer has none."""
        span = self.spans.get(name)
        return None if span is None else span.of(self.current.weights)

    @property
    def current(self) -> Bank:
        """The bank of the pass under way."""
        if self.bank is None:
            raise UnsupportedUseError("a banked layer was called outside of a pass")
        return self.bank

    def _attach(self, inputs: Tensor) -> Tensor:
        """Run ``compute`` as a node of the autograd graph."""
        bank = self.current
        self.calls += 1
        if self.calls > 1:
            raise UnsupportedUseError(f"a {type(self).__name__} is used more than once")
        if inputs.shape[0] != bank.rows:
            raise UnsupportedUseError(
                f"a {type(self).__name__} got {inputs.shape[0]} rows for {bank.rows} examples"
            )
        output: Tensor = _Node.apply(inputs, bank.anchor, self)  # type: ignore[no-untyped-call]
        self.outputs_per_row = output.numel() // max(1, bank.rows)
        return output

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's output, for every row with the weights of its group."""
        return self._attach(inputs)


class _Node(torch.autograd.Function):
    """One banked layer in the graph. The anchor makes autograd come by even at the first layer."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, layer: BankedLayer) -> Tensor:
        ctx.layer = layer
        return layer.compute(inputs.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        layer: BankedLayer = ctx.layer
        (gradient,) = gradients
        layer.squared_norms = layer.observe(gradient)
        return layer.input_gradient(gradient) if ctx.needs_input_grad[0] else None, None, None
