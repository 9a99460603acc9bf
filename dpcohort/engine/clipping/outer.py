# SPDX-License-Identifier: Apache-2.0
"""Norms and clipped sums of gradients that are sums of outer products over positions.

For a linear map applied at positions t = 1..T of an example the gradient is G = sum_t g_t a_t^T
(g: gradient of the output, a: input). Three ways to its norm:

* T = 1: |G|^2 = |g|^2 |a|^2, for next to nothing.
* direct: form G for every example; its clipped sum then costs almost nothing more.
* Gram: |G|^2 = sum_{t,s} (a_t . a_s)(g_t . g_s), without forming G. The terms can cancel, so this
  is done in 64 bits: a norm that came out too small would clip too little.

The choice depends on shapes only, never on a measurement, so that a run repeats to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["OuterSum", "gram_is_cheaper", "outer_norms", "row_norms"]

#: Below this the squares that make a norm may have vanished in a float; above that it matters.
_VANISHING, _LARGE = 1e-13, 1e6


def gram_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Whether the Gram way beats forming the gradients.

    It saves writing and reading inputs x outputs numbers an example, each worth a few
    multiplications, and costs positions^2 (inputs + outputs) multiplications in 64 bits.

    Example:
        >>> gram_is_cheaper(4, 512, 512), gram_is_cheaper(64, 64, 64)
        (True, False)
    """
    return positions * positions * (inputs + outputs) <= 4 * inputs * outputs


def row_norms(values: Tensor) -> Tensor:
    """Norm of each row's entries, without a squared copy of them.

    Example:
        >>> row_norms(torch.tensor([[[3.0], [4.0]]]))
        tensor([5.])
    """
    norms: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms


def outer_norms(of_inputs: Tensor, of_gradients: Tensor) -> Tensor:
    """Norm |g| |a| of each g a^T; NaN where a float cannot vouch for it.

    A norm below 1e-13 may be that of numbers whose squares vanished. Beside one below 1e6 the
    product is next to nothing all the same; beside a larger one it must be computed otherwise.

    Example:
        >>> outer_norms(torch.tensor([2.0, 1e20]), torch.tensor([3.0, 0.0]))
        tensor([6., nan])
    """
    products = of_inputs * of_gradients
    vanishing = torch.minimum(of_inputs, of_gradients) < _VANISHING
    doubtful = vanishing & (torch.maximum(of_inputs, of_gradients) > _LARGE)
    return products.masked_fill_(doubtful, float("nan"))


class OuterSum:
    """The gradients sum_t g_t a_t^T of a batch, kept in whichever form is cheapest.

    Args:
        inputs: a, [rows, T, inputs].
        gradients: g, [rows, T, outputs].

    Example:
        >>> a, g = torch.ones(1, 1, 4), torch.full((1, 1, 1), 3.0)
        >>> OuterSum(a, g).squared_norms().tolist()
        [36.0]
    """

    def __init__(self, inputs: Tensor, gradients: Tensor) -> None:
        self._inputs = inputs
        self._gradients = gradients
        self._formed: Tensor | None = None
        self._positions = inputs.shape[1]
        self._use_gram = gram_is_cheaper(self._positions, inputs.shape[2], gradients.shape[2])

    def squared_norms(self) -> Tensor:
        """|G|^2 of each row."""
        a, g = self._inputs, self._gradients
        if self._positions == 1:
            return outer_norms(row_norms(a), row_norms(g)).square()
        if self._use_gram:
            return _gram(a, g)
        self._formed = torch.bmm(g.transpose(1, 2), a)
        return row_norms(self._formed).square()

    def clipped_sum(self, factors: Tensor) -> Tensor:
        """Sum over rows of factor times G: factors [draws, rows] to [draws, outputs, inputs]."""
        shape = (factors.shape[0], self._gradients.shape[2], self._inputs.shape[2])
        return self.add_clipped_sum(factors, factors.new_zeros(shape))

    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> Tensor:
        """Add that sum to ``total``, [draws, outputs, inputs]."""
        draws, rows = factors.shape
        a, g = self._inputs, self._gradients
        if self._formed is not None:
            flat = self._formed.view(draws, rows, -1)
            return total.add_(torch.bmm(factors[:, None], flat).view(total.shape))
        weighted = g.view(draws, rows, *g.shape[1:]) * factors[:, :, None, None]
        return total.baddbmm_(
            weighted.reshape(draws, rows * self._positions, -1).transpose(1, 2),
            a.reshape(draws, rows * self._positions, -1),
        )


def _gram(inputs: Tensor, gradients: Tensor) -> Tensor:
    a, g = inputs.double(), gradients.double()
    products = torch.bmm(a, a.transpose(1, 2)) * torch.bmm(g, g.transpose(1, 2))
    return products.sum((1, 2)).clamp(min=0).to(inputs.dtype)
