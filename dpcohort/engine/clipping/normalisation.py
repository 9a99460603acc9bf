# SPDX-License-Identifier: Apache-2.0
"""The scale and shift of ``nn.GroupNorm`` and ``nn.LayerNorm`` with a bank of weights.

Normalising has no parameters and is left to autograd; scale and shift see an example's gradient
as plain sums over positions, small enough to form.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping.banked import BankedLayer
from dpcohort.engine.layout import FlatLayout

__all__ = ["BankedGroupNorm", "BankedLayerNorm"]


class _BankedScale(BankedLayer):
    """y = x * weight + bias, the parameters spread over the dimensions of x."""

    _inputs: Tensor | None = None

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout) -> None:
        super().__init__(layer, prefix, layout)
        self._formed: dict[str, Tensor] = {}

    def _spread(self, parameter: Tensor, like: Tensor) -> Tensor:
        """[groups, *shape] so that it broadcasts over [groups, rows, ...]."""
        raise NotImplementedError

    def _collect(self, values: Tensor) -> Tensor:
        """[rows, ...] summed to [rows, *shape]."""
        raise NotImplementedError

    def compute(self, inputs: Tensor) -> Tensor:
        """Scale and shift."""
        self._inputs = inputs
        grouped = self.current.by_group(inputs)
        weight, bias = self.weights("weight"), self.weights("bias")
        if weight is not None:
            grouped = grouped * self._spread(weight, grouped)
        if bias is not None:
            grouped = grouped + self._spread(bias, grouped)
        return grouped.view(inputs.shape)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The product g * weight."""
        weight = self.weights("weight")
        if weight is None:
            return gradient
        grouped = self.current.by_group(gradient)
        return (grouped * self._spread(weight, grouped)).view(gradient.shape)

    def observe(self, gradient: Tensor) -> Tensor:
        """Form both gradients of every example."""
        if self._inputs is None:
            raise RuntimeError("unreachable: backward comes after forward")
        norms = gradient.new_zeros(gradient.shape[0])
        for name in self.spans:
            values = gradient * self._inputs if name == "weight" else gradient
            formed = self._collect(values).flatten(1)
            self._formed[name] = formed
            norms = norms + formed.square().sum(1)
        return norms

    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> None:
        """Scale and shift."""
        for name, formed in self._formed.items():
            target = self.spans[name].of(total)
            product = torch.bmm(factors[:, None], self.current.by_draw(formed))
            target.add_(product.view(target.shape))

    def _drop(self) -> None:
        self._inputs = None
        self._formed = {}


class BankedGroupNorm(_BankedScale):
    """``nn.GroupNorm``: one scale and one shift a channel."""

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout) -> None:
        super().__init__(layer, prefix, layout)
        norm = cast(nn.GroupNorm, layer)
        self._groups, self._eps = norm.num_groups, norm.eps

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Every plain ``nn.GroupNorm`` with trained parameters."""
        return type(layer) is nn.GroupNorm and all(p.requires_grad for p in layer.parameters())

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise, then scale and shift."""
        return self._attach(F.group_norm(inputs, self._groups, None, None, self._eps))

    def _spread(self, parameter: Tensor, like: Tensor) -> Tensor:
        return parameter.view(parameter.shape[0], 1, -1, *[1] * (like.dim() - 3))

    def _collect(self, values: Tensor) -> Tensor:
        return values.flatten(2).sum(2) if values.dim() > 2 else values


class BankedLayerNorm(_BankedScale):
    """``nn.LayerNorm``: a scale and a shift for each of the trailing entries."""

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout) -> None:
        super().__init__(layer, prefix, layout)
        norm = cast(nn.LayerNorm, layer)
        self._shape, self._eps = tuple(norm.normalized_shape), norm.eps

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Every plain ``nn.LayerNorm`` with trained parameters."""
        return type(layer) is nn.LayerNorm and all(p.requires_grad for p in layer.parameters())

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise, then scale and shift."""
        return self._attach(F.layer_norm(inputs, self._shape, None, None, self._eps))

    def _spread(self, parameter: Tensor, like: Tensor) -> Tensor:
        between = like.dim() - 1 - len(self._shape)
        return parameter.view(parameter.shape[0], *[1] * between, *self._shape)

    def _collect(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], -1, *self._shape).sum(1)
