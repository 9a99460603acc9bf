# SPDX-License-Identifier: Apache-2.0
"""``nn.Linear`` with a bank of weights, applied to [rows, ..., features]."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping.banked import BankedLayer
from dpcohort.engine.clipping.outer import OuterSum, outer_norms, row_norms

__all__ = ["BankedLinear"]


class BankedLinear(BankedLayer):
    """A linear layer; the gradient of one example is a sum of outer products over positions."""

    _inputs: Tensor | None = None
    _outer: OuterSum | None = None
    _bias: Tensor | None = None
    _gradient: Tensor | None = None  # kept in place of the above for one position an example

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Every plain ``nn.Linear`` with a trained weight."""
        return type(layer) is nn.Linear and all(p.requires_grad for p in layer.parameters())

    def compute(self, inputs: Tensor) -> Tensor:
        """Outputs x W^T + b."""
        bank = self.current
        weight, bias = self.weights("weight"), self.weights("bias")
        if weight is None:
            raise RuntimeError("unreachable: a banked linear layer has a weight")
        self._inputs = inputs
        if bank.groups == 1:
            return F.linear(inputs, weight[0], None if bias is None else bias[0])
        flat = inputs.reshape(bank.groups, -1, inputs.shape[-1])
        if bias is None:
            outputs = torch.bmm(flat, weight.transpose(1, 2))
        else:
            outputs = torch.baddbmm(bias[:, None], flat, weight.transpose(1, 2))
        return outputs.view(*inputs.shape[:-1], weight.shape[1])

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The product g W."""
        bank, weight = self.current, self.weights("weight")
        if weight is None:
            raise RuntimeError("unreachable: a banked linear layer has a weight")
        if bank.groups == 1:
            return gradient @ weight[0]
        flat = gradient.reshape(bank.groups, -1, gradient.shape[-1])
        return torch.bmm(flat, weight).view(*gradient.shape[:-1], weight.shape[2])

    def observe(self, gradient: Tensor) -> Tensor:
        """|G|^2 of the weight, plus that of the bias."""
        if self._inputs is None:
            raise RuntimeError("unreachable: backward comes after forward")
        if gradient.dim() == 2 and gradient.device.type == "cpu":
            return self._observe_one(self._inputs, gradient)
        rows = gradient.shape[0]
        g = gradient.reshape(rows, -1, gradient.shape[-1])
        self._outer = OuterSum(self._inputs.reshape(rows, -1, self._inputs.shape[-1]), g)
        norms = self._outer.squared_norms()
        if "bias" in self.spans:
            self._bias = g.sum(1)
            norms = norms + self._bias.square().sum(1)
        return norms

    def _observe_one(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """One position an example, on a CPU: g a^T, and g for the bias, in few operations."""
        self._gradient = gradient
        of_gradient = row_norms(gradient)
        norms = outer_norms(row_norms(inputs), of_gradient).square_()
        return norms.add_(of_gradient.square_()) if "bias" in self.spans else norms

    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> None:
        """Weight and bias."""
        if self._gradient is not None:
            self._add_one_position(factors, total)
            return
        if self._outer is None:
            return
        self._outer.add_clipped_sum(factors, self.spans["weight"].of(total))
        if self._bias is not None:
            by_draw = self.current.by_draw(self._bias)
            self.spans["bias"].of(total).add_(torch.bmm(factors[:, None], by_draw)[:, 0])

    def _add_one_position(self, factors: Tensor, total: Tensor) -> None:
        if self._gradient is None or self._inputs is None:
            return
        draws = len(factors)
        parts = zip(self._inputs.chunk(draws), self._gradient.chunk(draws), strict=True)
        for draw, (a, g) in enumerate(parts):
            weighted = g * factors[draw, :, None]
            self.spans["weight"].of(total)[draw].addmm_(weighted.t(), a)
            if "bias" in self.spans:
                self.spans["bias"].of(total)[draw].add_(weighted.sum(0))

    def _drop(self) -> None:
        self._inputs = None
        self._outer = None
        self._bias = None
        self._gradient = None
