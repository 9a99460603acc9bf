# SPDX-License-Identifier: Apache-2.0
"""Layers with a stack of weights: many models side by side in one forward and backward pass.

The examples of all draws are the rows of one batch. A stack holds [groups, ...] weights; the rows
are split evenly among the groups, in order, and each row meets the weights of its group. Weights
stay outside autograd: on the way back a layer keeps its input and the gradient of its output, and
from these two gets, first, every example's squared gradient norm and, when all layers together
have told the clipping factors, the sum of the clipped gradients. Per-example gradients are only
formed where that is cheaper than doing without.

A linear map applied at positions t = 1..T of an example has the gradient G = sum_t g_t a_t^T (g:
gradient of the output, a: input). ``outer_sum_norms`` knows three ways to its norm:

* T = 1: |G|^2 = |g|^2 |a|^2, for next to nothing.
* direct: form G for every example; its clipped sum then costs almost nothing more.
* Gram: |G|^2 = sum_{t,s} (a_t . a_s)(g_t . g_s), without forming G. The terms can cancel, so this
  is done in 64 bits: a norm that came out too small would clip too little.

The choice depends on shapes only, never on a measurement, so that a run repeats to the bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping._per_example import FlatLayout

#: Numbers [rows, n] that belong to single rows; a pair stands for the outer products of its rows.
Part = tuple[Tensor, ...]


class StackedLayer(nn.Module, ABC):
    """Base of all stacked layers: keeps what one pass needs and nothing longer.

    It has no ``weight``: a model that reaches for one of its layers' parameters itself fails
    loudly while it is being examined, and takes the slow path.
    """

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout) -> None:
        super().__init__()
        self.places = {
            name: layout.places[f"{prefix}.{name}" if prefix else name]
            for name, parameter in layer.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        self._stack: Tensor | None = None
        self._rows = 0
        #: Rows that make one example, side by side: those of a person.
        self.each = 1
        #: Whether rows are to be treated alike, to the bit, and norms are not wanted.
        self.apart = False
        #: Whether a GPU's convolutions are then this package's.
        self.own_convolutions = True
        self.squared_norms: Tensor | None = None
        #: What belongs to single examples of the pass under way, its ``inputs`` among it.
        self.kept: dict[str, Tensor] = {}
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

    @abstractmethod
    def own_gradients(self) -> list[Part]:
        """Every row's own gradient in parts, as ``place`` takes their sums; of a pass apart."""

    def place(self, sums: Sequence[Tensor], total: Tensor) -> None:
        """Write the sums [..., numbers] of these parts to their places in [..., D]."""
        for name, found in zip(self.places, sums, strict=True):
            total[..., self.places[name][0]] = found

    def bind(self, stack: Tensor, examples: int, *, each: int = 1, apart: bool = False) -> None:
        """Begin a pass with these weights [groups, D], of so many examples of ``each`` rows."""
        self._stack, self._rows, self.calls, self.apart = stack, examples * each, 0, apart
        self.each = each
        self.squared_norms, self.kept = None, {}

    def release(self) -> None:
        """End a pass: let go of everything that belongs to single examples."""
        self._stack, self.squared_norms, self.kept = None, None, {}

    def part(self, name: str, matrix: Tensor) -> Tensor:
        """One parameter of every row of a [rows, D] matrix, as a view [rows, *shape]."""
        place, shape = self.places[name]
        return matrix[:, place].view(matrix.shape[0], *shape)

    @property
    def stack(self) -> Tensor:
        """The weights [groups, D] of the pass under way."""
        if self._stack is None:
            raise NotImplementedError("a stacked layer was called outside of a pass")
        return self._stack

    @property
    def stacked_weight(self) -> Tensor:
        """The stack's part [groups, *shape] for the layer's weight."""
        return self.part("weight", self.stack)

    @property
    def stacked_bias(self) -> Tensor | None:
        """The stack's part for the bias, None if the layer has none."""
        return self.part("bias", self.stack) if "bias" in self.places else None

    def by_group(self, values: Tensor) -> Tensor:
        """[rows, ...] as [groups, rows of a group, ...]."""
        groups = len(self.stack)
        return values.reshape(groups, self._rows // groups, *values.shape[1:])

    def joined(self, values: Tensor) -> Tensor:
        """Numbers [rows, ...] added up over the rows of each example."""
        if self.each == 1:
            return values
        return values.reshape(-1, self.each, *values.shape[1:]).sum(1)

    def _add_formed(self, name: str, factors: Tensor, total: Tensor) -> None:
        """Add the sums of one parameter's gradients, kept under its name, [rows, size]."""
        target, formed = self.part(name, total), self.kept[name]
        product = torch.bmm(factors[:, None], formed.reshape(*factors.shape, *formed.shape[1:]))
        target.add_(product.view(target.shape))

    def _attach(self, inputs: Tensor) -> Tensor:
        """Run ``compute`` as a node of the autograd graph."""
        anchor = torch.empty((), device=self.stack.device, requires_grad=True)
        self.calls += 1
        if self.calls > 1:
            raise NotImplementedError(f"a {type(self).__name__} is used more than once")
        if inputs.shape[0] != self._rows:
            raise NotImplementedError(
                f"a {type(self).__name__} got {inputs.shape[0]} rows for {self._rows}"
            )
        output: Tensor = _Node.apply(inputs, anchor, self)  # type: ignore[no-untyped-call]
        self.outputs_per_row = output.numel() * self.each // max(1, self._rows)
        return output

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's output, for every row with the weights of its group."""
        return self._attach(inputs)


class _Node(torch.autograd.Function):
    """One stacked layer in the graph. The anchor makes autograd come by even at the first layer."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, layer: StackedLayer) -> Tensor:
        ctx.layer = layer
        layer.kept["inputs"] = inputs.detach()
        return layer.compute(layer.kept["inputs"])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        layer: StackedLayer = ctx.layer
        (gradient,) = gradients
        layer.squared_norms = layer.observe(gradient)
        return layer.input_gradient(gradient) if ctx.needs_input_grad[0] else None, None, None


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


def outer_sum_norms(inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor | None]:
    """|G|^2 of each row for G = sum_t g_t a_t^T, and G itself where it had to be formed.

    Args:
        inputs: a, [rows, T, inputs].
        gradients: g, [rows, T, outputs].

    Example:
        >>> a, g = torch.ones(1, 1, 4), torch.full((1, 1, 1), 3.0)
        >>> outer_sum_norms(a, g)
        (tensor([36.]), None)
    """
    positions = inputs.shape[1]
    if positions == 1:
        return outer_norms(row_norms(inputs), row_norms(gradients)).square(), None
    if gram_is_cheaper(positions, inputs.shape[2], gradients.shape[2]):
        return _gram(inputs, gradients), None
    formed = torch.bmm(gradients.transpose(1, 2), inputs)
    return row_norms(formed).square(), formed


def add_outer_sums(
    total: Tensor, inputs: Tensor, gradients: Tensor, formed: Tensor | None, factors: Tensor
) -> Tensor:
    """Add the sums over rows of factor times G, factors [draws, rows], to [draws, outputs, inputs].

    Args:
        total: where to add.
        inputs: a, as in ``outer_sum_norms``.
        gradients: g.
        formed: G if it was formed.
        factors: [draws, rows].
    """
    draws, rows = factors.shape
    if formed is not None:
        flat = formed.view(draws, rows, -1)
        return total.add_(torch.bmm(factors[:, None], flat).view(total.shape))
    weighted = gradients.view(draws, rows, *gradients.shape[1:]) * factors[:, :, None, None]
    joined = rows * inputs.shape[1]
    return total.baddbmm_(
        weighted.reshape(draws, joined, -1).transpose(1, 2), inputs.reshape(draws, joined, -1)
    )


def _gram(inputs: Tensor, gradients: Tensor) -> Tensor:
    a, g = inputs.double(), gradients.double()
    products = torch.bmm(a, a.transpose(1, 2)) * torch.bmm(g, g.transpose(1, 2))
    return products.sum((1, 2)).clamp(min=0).to(inputs.dtype)


_ALIGNED = 16  # numbers of a cache line


def aligned_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """[..., n] times [n, m], both filled up with zeros to whole cache lines.

    Where lines of a matrix begin anywhere, the order in which a product is added up may depend on
    where a line is; zeros change no sum.

    Example:
        >>> aligned_product(torch.ones(2, 3), torch.ones(3, 1)).tolist()
        [[3.0], [3.0]]
    """
    inner, outer = (-size % _ALIGNED for size in matrix.shape)
    product = F.pad(rows, (0, inner)) @ F.pad(matrix, (0, outer, 0, inner))
    return product[..., : matrix.shape[1]].contiguous()


class StackedLinear(StackedLayer):
    """A linear layer; the gradient of one example is a sum of outer products over positions."""

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Every plain ``nn.Linear`` with a trained weight."""
        return type(layer) is nn.Linear and all(p.requires_grad for p in layer.parameters())

    def compute(self, inputs: Tensor) -> Tensor:
        """Outputs x W^T + b."""
        weight, bias = self.stacked_weight, self.stacked_bias
        if self.apart and inputs.device.type == "cpu":
            outputs = aligned_product(inputs, weight[0].t())
            return outputs if bias is None else outputs + bias[0]
        if len(weight) == 1:
            return F.linear(inputs, weight[0], None if bias is None else bias[0])
        flat = inputs.reshape(len(weight), -1, inputs.shape[-1])
        if bias is None:
            outputs = torch.bmm(flat, weight.transpose(1, 2))
        else:
            outputs = torch.baddbmm(bias[:, None], flat, weight.transpose(1, 2))
        return outputs.view(*inputs.shape[:-1], weight.shape[1])

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The product g W."""
        weight = self.stacked_weight
        if self.apart and gradient.device.type == "cpu":
            return aligned_product(gradient, weight[0])
        if len(weight) == 1:
            return gradient @ weight[0]
        flat = gradient.reshape(len(weight), -1, gradient.shape[-1])
        return torch.bmm(flat, weight).view(*gradient.shape[:-1], weight.shape[2])

    def observe(self, gradient: Tensor) -> Tensor:
        """|G|^2 of the weight, plus that of the bias."""
        inputs = self.kept["inputs"]
        if gradient.dim() == 2 and gradient.device.type == "cpu" and self.each == 1:
            return self._observe_one(inputs, gradient)
        rows = gradient.shape[0] // self.each
        g = gradient.reshape(rows, -1, gradient.shape[-1])
        a = inputs.reshape(rows, -1, inputs.shape[-1])
        if self.apart:
            norms = gradient.new_empty(0)
            formed = torch.bmm(g.transpose(1, 2), a) if g.shape[1] > 1 else None
        else:
            norms, formed = outer_sum_norms(a, g)
        self.kept |= {"a": a, "g": g} | ({} if formed is None else {"formed": formed})
        if "bias" in self.places:
            self.kept["bias"] = g.sum(1)
            norms = norms if self.apart else norms + self.kept["bias"].square().sum(1)
        return norms

    def _observe_one(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """One position an example, on a CPU: g a^T, and g for the bias, in few operations."""
        self.kept["gradient"] = gradient
        if self.apart:
            return gradient.new_empty(0)
        of_gradient = row_norms(gradient)
        norms = outer_norms(row_norms(inputs), of_gradient).square_()
        return norms.add_(of_gradient.square_()) if "bias" in self.places else norms

    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> None:
        """Weight and bias."""
        kept = self.kept
        if "gradient" in kept:
            self._add_one_position(kept["gradient"], factors, total)
        elif "g" in kept:
            weight = self.part("weight", total)
            add_outer_sums(weight, kept["a"], kept["g"], kept.get("formed"), factors)
            if "bias" in kept:
                self._add_formed("bias", factors, total)

    def own_gradients(self) -> list[Part]:
        """For one position an example the outer product g a^T, else what was formed; the bias."""
        kept, weight = self.kept, self._own_weight()
        bias = kept.get("bias", kept.get("gradient"))
        return [weight, *([(bias,)] if "bias" in self.places and bias is not None else [])]

    def _own_weight(self) -> Part:
        kept = self.kept
        if "gradient" in kept:
            return kept["gradient"], kept["inputs"]
        if "formed" in kept:
            return (kept["formed"].flatten(1),)
        return kept["g"][:, 0], kept["a"][:, 0]

    def _add_one_position(self, gradient: Tensor, factors: Tensor, total: Tensor) -> None:
        draws = len(factors)
        parts = zip(self.kept["inputs"].chunk(draws), gradient.chunk(draws), strict=True)
        for draw, (a, g) in enumerate(parts):
            weighted = g * factors[draw, :, None]
            self.part("weight", total)[draw].addmm_(weighted.t(), a)
            if "bias" in self.places:
                self.part("bias", total)[draw].add_(weighted.sum(0))


#: Up to so many tokens an example, all pairs of tokens are compared; beyond, they are sorted.
_ALL_PAIRS = 64


class StackedEmbedding(StackedLayer):
    """An embedding; an example's gradient adds up, word by word, where a word occurs again."""

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
        groups, words = self.stacked_weight.shape[:2]
        unknown = (inputs < 0) | (inputs >= words)
        if self.apart:  # in private runs it has no gradient, and costs its own example alone
            inputs = torch.where(unknown, 0, inputs)
        else:
            # A word counted from the end is of this table, and not of the one before in a stack.
            inputs = torch.where(inputs < 0, inputs + words, inputs)
        self.kept["inputs"] = inputs
        group = torch.arange(groups, device=inputs.device).repeat_interleave(self._rows // groups)
        outputs = self.stacked_weight[group.view(-1, *[1] * (inputs.dim() - 1)), inputs]
        if self.apart:
            lost = unknown.flatten(1).any(1) if unknown.dim() > 1 else unknown
            outputs = outputs.masked_fill(lost.view(-1, *[1] * (outputs.dim() - 1)), torch.nan)
        return outputs

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """Never asked for: tokens are integers."""
        raise RuntimeError("unreachable: tokens have no gradient")

    def observe(self, gradient: Tensor) -> Tensor:
        """Squared norm of the gradient summed over equal tokens."""
        rows = gradient.shape[0] // self.each
        tokens = self.kept["inputs"].reshape(rows, -1)
        g = gradient.reshape(rows, -1, gradient.shape[-1])
        if self._padding_idx is not None:
            g = g * (tokens != self._padding_idx)[:, :, None]
        self.kept["gradients"] = g
        if self.apart:
            return gradient.new_empty(0)
        return _pairwise(tokens, g) if tokens.shape[1] <= _ALL_PAIRS else _sorted(tokens, g)

    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> None:
        """Scatter the clipped gradients to their words."""
        if "gradients" not in self.kept:
            return
        table = self.part("weight", total)
        draws, words, width = table.shape
        g = self.kept["gradients"]
        weighted = g.reshape(*factors.shape, *g.shape[1:]) * factors[:, :, None, None]
        start = torch.arange(draws, device=total.device)[:, None, None] * words
        where = (self.kept["inputs"].reshape(*factors.shape, -1) + start).reshape(-1)
        added = torch.zeros(draws * words, width, dtype=total.dtype, device=total.device)
        added.index_add_(0, where, weighted.reshape(-1, width))
        table.add_(added.view(draws, words, width))

    def own_gradients(self) -> list[Part]:
        """A table for each example, its words added up in order: atomic sums of a GPU have none."""
        g, words = self.kept["gradients"], self.places["weight"][1][0]
        rows = torch.arange(len(g), device=g.device)[:, None] * words
        where = (self.kept["inputs"].reshape(len(g), -1) + rows).reshape(-1)
        tables = torch.ops.aten.embedding_dense_backward(
            g.reshape(-1, g.shape[-1]), where, len(g) * words, -1, False
        )
        return [(tables.view(len(g), -1),)]


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


class StackedNormalisation(StackedLayer):
    """The scale and shift of ``nn.GroupNorm`` and ``nn.LayerNorm``.

    Normalising has no parameters and is left to autograd; scale and shift see an example's gradient
    as plain sums over positions, small enough to form. A group norm has one scale and one shift a
    channel, a layer norm one for each of the trailing entries.
    """

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout) -> None:
        super().__init__(layer, prefix, layout)
        norm = cast(nn.GroupNorm | nn.LayerNorm, layer)
        self._by_channel = isinstance(norm, nn.GroupNorm)
        self._normalise: Callable[[Tensor], Tensor] = (
            partial(F.group_norm, num_groups=norm.num_groups, eps=norm.eps)
            if isinstance(norm, nn.GroupNorm)
            else partial(F.layer_norm, normalized_shape=norm.normalized_shape, eps=norm.eps)
        )

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Every plain ``nn.GroupNorm`` and ``nn.LayerNorm`` with trained parameters."""
        plain = type(layer) in (nn.GroupNorm, nn.LayerNorm)
        return plain and all(p.requires_grad for p in layer.parameters())

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise, then scale and shift."""
        return self._attach(self._normalise(inputs))

    def compute(self, inputs: Tensor) -> Tensor:
        """Scale and shift."""
        grouped = self.by_group(inputs)
        scaled = grouped * self._spread(self.stacked_weight, grouped)
        if self.stacked_bias is not None:
            scaled = scaled + self._spread(self.stacked_bias, grouped)
        return scaled.view(inputs.shape)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The product g * weight."""
        grouped = self.by_group(gradient)
        return (grouped * self._spread(self.stacked_weight, grouped)).view(gradient.shape)

    def observe(self, gradient: Tensor) -> Tensor:
        """Form both gradients of every example."""
        norms = gradient.new_zeros(gradient.shape[0] // self.each)
        for name in self.places:
            values = gradient * self.kept["inputs"] if name == "weight" else gradient
            self.kept[name] = self.joined(self._collect(values).flatten(1))
            norms = norms + self.kept[name].square().sum(1)
        return norms

    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> None:
        """Scale and shift."""
        for name in self.places:
            if name in self.kept:
                self._add_formed(name, factors, total)

    def own_gradients(self) -> list[Part]:
        """Scale and shift, which were formed."""
        return [(self.kept[name],) for name in self.places]

    def _spread(self, parameter: Tensor, like: Tensor) -> Tensor:
        """[groups, *shape] so that it broadcasts over [groups, rows, ...]."""
        if self._by_channel:
            return parameter.view(parameter.shape[0], 1, -1, *[1] * (like.dim() - 3))
        shape = parameter.shape[1:]
        return parameter.view(parameter.shape[0], *[1] * (like.dim() - 1 - len(shape)), *shape)

    def _collect(self, values: Tensor) -> Tensor:
        """[rows, ...] summed to [rows, *shape]."""
        if self._by_channel:
            return values.flatten(2).sum(2) if values.dim() > 2 else values
        return values.reshape(values.shape[0], -1, *self.places["weight"][1]).sum(1)
