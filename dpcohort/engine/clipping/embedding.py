# SPDX-License-Identifier: Apache-2.0
"""``nn.Embedding`` with a bank of weights, looked up by [rows, ...] integers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from dpcohort.engine.clipping.banked import BankedLayer
from dpcohort.engine.layout import FlatLayout

__all__ = ["BankedEmbedding"]

#: Up to so many tokens an example, all pairs of tokens are compared; beyond, they are sorted.
_ALL_PAIRS = 64


class BankedEmbedding(BankedLayer):
    """An embedding; an example's gradient adds up, word by word, where a word occurs again."""

    _tokens: Tensor | None = None
    _flat_tokens: Tensor | None = None
    _gradients: Tensor | None = None

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout) -> None:
        super().__init__(layer, prefix, layout)
        self._padding_idx = cast(nn.Embedding, layer).padding_idx

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Plain embeddings; not those that renormalise or rescale by frequency."""
        return (
            type(layer) is nn.Embedding
            and layer.weight.requires_grad
            and layer.max_norm is None
            and not layer.scale_grad_by_freq
            and not layer.sparse
        )

    def compute(self, inputs: Tensor) -> Tensor:
        """The rows of each group's table."""
        bank, table = self.current, self.weights("weight")
        if table is None:
            raise RuntimeError("unreachable: a banked embedding has a weight")
        self._tokens = inputs
        group = torch.arange(bank.groups, device=inputs.device)
        group = group.repeat_interleave(bank.rows // bank.groups)
        return table[group.view(-1, *[1] * (inputs.dim() - 1)), inputs]

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """Never asked for: tokens are integers."""
        raise RuntimeError("unreachable: tokens have no gradient")

    def observe(self, gradient: Tensor) -> Tensor:
        """Squared norm of the gradient summed over equal tokens."""
        if self._tokens is None:
            raise RuntimeError("unreachable: backward comes after forward")
        rows = gradient.shape[0]
        tokens = self._tokens.reshape(rows, -1)
        g = gradient.reshape(rows, -1, gradient.shape[-1])
        if self._padding_idx is not None:
            g = g * (tokens != self._padding_idx)[:, :, None]
        self._flat_tokens, self._gradients = tokens, g
        return _pairwise(tokens, g) if tokens.shape[1] <= _ALL_PAIRS else _sorted(tokens, g)

    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> None:
        """Scatter the clipped gradients to their words."""
        if self._gradients is None or self._flat_tokens is None:
            return
        table = self.spans["weight"].of(total)
        draws, words, width = table.shape
        weighted = self.current.by_draw(self._gradients) * factors[:, :, None, None]
        start = torch.arange(draws, device=total.device)[:, None, None] * words
        where = (self.current.by_draw(self._flat_tokens) + start).reshape(-1)
        added = torch.zeros(draws * words, width, dtype=total.dtype, device=total.device)
        added.index_add_(0, where, weighted.reshape(-1, width))
        table.add_(added.view(draws, words, width))

    def _drop(self) -> None:
        self._tokens = None
        self._flat_tokens = None
        self._gradients = None


def _pairwise(tokens: Tensor, gradients: Tensor) -> Tensor:
    # 64 bits because the products can cancel; a norm too small would clip too little.
    g = gradients.double()
    same = tokens[:, :, None] == tokens[:, None, :]
    products = torch.bmm(g, g.transpose(1, 2)) * same
    return products.sum((1, 2)).clamp(min=0).to(gradients.dtype)


def _sorted(tokens: Tensor, gradients: Tensor) -> Tensor:
    rows, length, width = gradients.shape
    row = torch.arange(rows, device=tokens.device)[:, None].expand(rows, length)
    pair = torch.stack([row.reshape(-1), tokens.reshape(-1)], dim=1)
    unique, position = torch.unique(pair, dim=0, return_inverse=True)
    sums = gradients.new_zeros(unique.shape[0], width)
    sums.index_add_(0, position, gradients.reshape(-1, width))
    return gradients.new_zeros(rows).index_add_(0, unique[:, 0], sums.square().sum(1))
