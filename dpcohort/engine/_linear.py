# SPDX-License-Identifier: Apache-2.0
"""Clipped gradients of a model that is one linear layer, in closed form, of many draws at once.

The gradient of a record is an outer product, r x^T: x is its row with a 1 for the bias, and r, the
residual, the gradient of its loss by the layer's outputs. Its norm is |r| |x|. Second moments
(``SecondMoments``) are further residuals, κ x. Of a person, whose record is several rows, the
gradient is the sum of these products. So no network is run and no graph is kept:
two small products of matrices and a few operations on single numbers, for all draws of a round.

Everything is in 64 bits, and in **lines** of as many records as the model's shape alone says,
filled up with blank records, which contribute exactly nothing. A draw has as many lines as its
public batch size needs with a margin of four standard deviations, and further ones if its batch is
longer yet. All products have one shape, whatever was drawn and whatever else is drawn: no bit of a
record or of a draw depends on others, nor on how many processors there are. That holds of what is
ours; of torch's products it is tried on made-up records before any other is computed
(``keeps_apart``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort import tasks
from dpcohort._validate import IntArray
from dpcohort.engine._lattice import Lattice, cut_sum, factors_and_finite
from dpcohort.engine.clipping import ClippingPath, FlatLayout, Loss, clip_factors
from dpcohort.engine.clipping import _per_example as per_example
from dpcohort.models._apart import not_proved_apart
from dpcohort.models._each_alone import treats_alike
from dpcohort.models._moments import MomentsLoss, SecondMoments
from dpcohort.models._persons import PersonLoss, PersonModel, null_like

#: Inputs and targets of some stored rows. SENSITIVE.
Gather = Callable[[IntArray], tuple[Tensor, Tensor]]

_LINE, _SHORT_LINE = 64, 16  # records; the short ones where a gradient is large
_LARGE = 1 << 12  # numbers of a gradient
_AT_A_TIME = 1 << 18  # numbers of gradients, which then stay in a core's cache
_ALIGNED = 8  # numbers of 64 bits in a cache line
_LARGEST = 1e300  # of a scaled residual: where it is more, its row is nothing but tiny numbers
_MARGIN = 4.0  # standard deviations by which a batch may be longer than expected


@dataclass(frozen=True)
class _Lines:
    """Some lines of records with their weights; one draw after the other.

    Attributes:
        draw: of each line.
        weights: [lines, outputs, width].
        rows: [lines x records, rows of a record, width].
        targets: [lines x records, ...].
        there: [lines, records], false for blanks.
    """

    draw: Tensor
    weights: Tensor
    rows: Tensor
    targets: Tensor
    there: Tensor


class LinearModel:
    """The clipped gradients of one linear layer under a loss of this package.

    Args:
        layer: its shape is read.
        loss: one number for each record, of outputs [records, outputs] or, of persons, [persons,
            rows, outputs].
        layout: of the model's parameters.
        inputs: [n, ...] of the right shape and type; no number of it is looked at.
        targets: [n, ...].
        scale: κ of second moments; 0 without them.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> loss = tasks.Task(kind="regression", outputs=1, bounds=(-1.0, 1.0)).loss_on()
        >>> x, y = torch.tensor([[3.0, 4.0], [0.1, 0.0]]), torch.tensor([-1.0, -1.0])
        >>> linear = LinearModel.of(model, loss, x, y)
        >>> gather = lambda at: (x[at], y[at])
        >>> linear.clipped_sums(torch.zeros(1, 2), [np.arange(2)], gather, [2], clips=[1.0])[0]
        tensor([[0.7000, 0.8000]])
    """

    def __init__(
        self, layer: nn.Linear, loss: Loss, layout: FlatLayout, inputs: Tensor, targets: Tensor,
        *, scale: float = 0.0,
    ) -> None:  # fmt: skip
        self._loss, self._dimension = loss, layout.dimension
        self._outputs, self._inputs = layer.weight.shape
        #: κ of second moments; 0 without them.
        self._scale = scale
        #: Residuals of a row by layer: those of moments, and behind them those of the outputs.
        self._heights = [self._inputs, self._outputs] if scale else [self._outputs]
        self._residuals = sum(self._heights)
        #: Places of weight and bias of each layer in the vector of parameters.
        places = [place for place, _ in layout.places.values()]
        each = 1 + (layer.bias is not None)
        self._places = [places[i : i + each] for i in range(0, len(places), each)]
        #: Rows that make one record: those of a person.
        self._each = inputs.shape[1] if isinstance(loss, PersonLoss) else 1
        # The bias is the weight of one more input, which is always 1.
        self._used = self._inputs + (layer.bias is not None)
        self._width = -(-self._used // _ALIGNED) * _ALIGNED
        self._numbers = self._residuals * self._width
        #: Records of a line.
        self.line = _LINE if self._numbers <= _LARGE else _SHORT_LINE
        target = null_like(targets) if isinstance(loss, PersonLoss) else targets.new_zeros(())
        self._blank = target.double() if targets.is_floating_point() else target
        self._shape_of_targets = targets.shape[1:]

    @classmethod
    def of(
        cls, model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor
    ) -> LinearModel | None:
        """The closed form; None of what is not one whole linear layer, or has another loss.

        Args:
            model: any module.
            loss: one number for each example.
            inputs: [n, ...] of the right shape and type, on the device.
            targets: [n, ...].
        """
        if not is_ours(loss) or not_proved_apart(model) is not None or inputs.is_cuda:
            return None
        rows = inputs.flatten(0, 1) if isinstance(model, PersonModel) else inputs
        of_rows = loss.of_rows if isinstance(loss, PersonLoss) else loss
        parts = [part for part in model.modules() if not isinstance(part, nn.Sequential)]
        moments = [part for part in parts if isinstance(part, SecondMoments)]
        known = [part.moments for part in moments]
        layers = [part for part in parts if type(part) is nn.Linear and part not in known]
        flattens = [part for part in parts if type(part) is nn.Flatten]
        others = len(parts) - len(layers) - len(flattens) - 2 * len(moments)
        others -= sum(type(part) in (nn.Identity, PersonModel) for part in parts)
        fits = (
            len(layers) == 1
            and others == 0
            and parts[-1] is layers[0]
            and isinstance(of_rows, MomentsLoss) == bool(moments)
            and all(part.training for part in moments)
            and all((part.start_dim, part.end_dim) == (1, -1) for part in flattens)
            and (rows.dim() == 2 or len(flattens) > 0)
            and rows.is_floating_point()
            and layers[0].in_features == math.prod(rows.shape[1:])
            and all(parameter.requires_grad for parameter in model.parameters())
        )
        if not fits:
            return None
        scale = moments[0].scale if moments else 0.0
        return cls(layers[0], loss, FlatLayout(model), inputs, targets, scale=scale)

    @property
    def path(self) -> ClippingPath:
        """How its gradients are clipped."""
        reason = "one linear layer, whose gradients have a closed form"
        return ClippingPath("stacked", reason, 6 * self._each * self._outputs)

    def draws_at_a_time(self, batch_size: int, *, formed: bool) -> int:
        """How many draws of this public size are worth a pass of one processor.

        Args:
            batch_size: the public size of a batch.
            formed: whether the gradients of records are, as for sums of integers.
        """
        numbers = self._lines_for(batch_size) * self.line * self._numbers_kept(formed=formed)
        return max(1, 4 * _AT_A_TIME // numbers)

    def clipped_sums(
        self,
        weights: Tensor,
        rows: Sequence[IntArray],
        gather: Gather,
        batch_sizes: Sequence[int],
        *,
        clips: Sequence[float],
    ) -> tuple[Tensor, int]:
        """Sums of clipped gradients, [draws, D], in floating point. SENSITIVE.

        Args:
            weights: [draws, D].
            rows: stored rows of each draw's batch.
            gather: gives their inputs and targets.
            batch_sizes: the public size of each batch.
            clips: C of each draw.

        Returns:
            The sums, and how many records contribute nothing as their gradients are not finite.
        """
        total = torch.zeros(len(rows), self._residuals, self._width, dtype=torch.float64)
        clip, lost = torch.tensor(clips, dtype=torch.float64), 0
        for lines in self._lines(weights, rows, gather, batch_sizes, formed=False):
            residuals, norms = self._gradients(lines)
            factors = clip_factors(norms.square_(), clip[lines.draw, None]) * lines.there
            finite, values = torch.isfinite(norms), lines.rows
            if not bool(finite.all()):
                lost += int((lines.there & ~finite).sum())
                residuals, values = (
                    torch.where(finite.view(-1, 1, 1), each, 0.0) for each in (residuals, values)
                )
            weighted = residuals * factors.view(-1, 1, 1)
            sums = self._products(weighted, values, len(lines.draw))
            total.index_add_(0, lines.draw, sums)
        return self._flat(total).to(weights.dtype), lost

    def integer_sums(
        self,
        weights: Tensor,
        rows: Sequence[IntArray],
        gather: Gather,
        batch_sizes: Sequence[int],
        *,
        lattices: Sequence[Lattice],
    ) -> Tensor:
        """The same on the lattices of the draws, [draws, D] int64. SENSITIVE."""
        total = torch.zeros(len(rows), self._residuals, self._width, dtype=torch.int64)
        terms = torch.tensor([(one.clip, one.bound) for one in lattices], dtype=torch.float64)
        for lines in self._lines(weights, rows, gather, batch_sizes, formed=True):
            residuals, norms = self._gradients(lines)
            clip, bound = terms[lines.draw, None].unbind(-1)
            factors, finite = factors_and_finite(norms, lines.there, clip, bound)
            for each in (residuals, lines.rows):  # whatever was no number becomes 0
                each.view(torch.int64).bitwise_and_(-finite.long().view(-1, 1, 1))
            scaled = (residuals * factors.view(-1, 1, 1)).clamp_(-_LARGEST, _LARGEST)
            formed = self._products(scaled, lines.rows, norms.numel())
            sums = cut_sum(formed.view(*norms.shape, -1), bound)
            total.index_add_(0, lines.draw, sums.view(len(sums), self._residuals, -1))
        return self._flat(total)

    @torch.no_grad()
    def keeps_apart(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> bool:
        """Whether made-up records have the same bits at all places, beside any others.

        Args:
            weights: [D], any.
            inputs: made-up records, of a whole line.
            targets: of these.
        """
        few = 3

        def rows_of(*records: Tensor) -> Tensor:
            """All that a record's integers are made of: alone, and in one line of several."""
            found = []
            for lines in (1, few):
                numbers = np.tile(np.arange(self.line), lines)
                made = self._lines(
                    weights.expand(lines, -1),
                    np.split(numbers, lines),
                    lambda at: (records[0][at], records[1][at]),
                    [1] * lines,
                    formed=True,
                )
                for some in made:
                    residuals, norms = self._gradients(some)
                    formed = self._products(residuals, some.rows, norms.numel())
                    found.append(torch.cat([norms.view(-1, 1), formed.flatten(1)], dim=1))
            return torch.cat(torch.cat(found).chunk(1 + few), dim=1)

        return treats_alike(rows_of, (inputs, targets), [self.line])

    def _numbers_kept(self, *, formed: bool) -> int:
        """Numbers that belong to a record while it is computed."""
        gradient = self._numbers if formed or self._each > 1 else self._residuals
        return gradient + self._each * self._width

    def _lines_for(self, batch_size: int) -> int:
        longest = batch_size + _MARGIN * math.sqrt(batch_size)
        return math.ceil(longest / self.line)

    def _lines(
        self, weights: Tensor, rows: Sequence[IntArray], gather: Gather,
        batch_sizes: Sequence[int], *, formed: bool,
    ) -> Iterator[_Lines]:  # fmt: skip
        """The batches in lines, as many at a time as a cache holds."""
        lengths = np.array([len(own) for own in rows])
        planned = np.array([self._lines_for(int(size)) for size in batch_sizes])
        counts = np.maximum(planned, -(-lengths // self.line))
        first = np.cumsum(counts) - counts
        begins = self.line * first - (np.cumsum(lengths) - lengths)
        places = np.repeat(begins, lengths) + np.arange(lengths.sum())
        given, labels = gather(np.concatenate(rows))
        records = int(counts.sum()) * self.line
        matrix = torch.zeros(records, self._each, self._width, dtype=torch.float64)
        targets = self._blank.expand(records, *self._shape_of_targets).clone()
        at = torch.from_numpy(places)
        values = given.reshape(len(at), self._each, self._inputs).double()
        matrix[..., : self._inputs].index_copy_(0, at, values)
        targets.index_copy_(0, at, labels.to(targets))
        there = torch.zeros(records, dtype=torch.bool)
        there[at] = True
        if self._used > self._inputs:
            matrix[..., self._inputs] = 1.0
        draw = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
        stacked = self._stacked(weights)
        step = max(1, _AT_A_TIME // (self.line * self._numbers_kept(formed=formed)))
        for start in range(0, len(draw), step):
            some = slice(start, start + step)
            every = slice(start * self.line, (start + step) * self.line)
            yield _Lines(
                draw[some],
                stacked[draw[some]],
                matrix[every],
                targets[every],
                there[every].view(-1, self.line),
            )

    def _gradients(self, lines: _Lines) -> tuple[Tensor, Tensor]:
        """Residuals [records, rows of a record, ...], and norms [lines, records]."""
        count = len(lines.draw)
        outputs = torch.bmm(lines.rows.view(count, -1, self._width), lines.weights.transpose(1, 2))
        if self._scale:  # the output of moments is added to the loss: any will do
            outputs = F.pad(outputs, (0, 1))
        shape = (-1, self._each) if isinstance(self._loss, PersonLoss) else (-1,)
        point = outputs.view(*shape, outputs.shape[-1]).requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(self._loss(point, lines.targets).sum(), point)
        residuals = found.view(-1, self._each, found.shape[-1])
        if self._scale:
            of_moments = self._scale * residuals[..., -1:] * lines.rows[..., : self._inputs]
            residuals = torch.cat([of_moments, residuals[..., :-1]], dim=2)
        if self._each == 1:
            norms = torch.linalg.vector_norm(lines.rows, dim=(1, 2))
            norms *= torch.linalg.vector_norm(residuals, dim=(1, 2))
        else:
            formed = self._products(residuals, lines.rows, len(residuals))
            norms = torch.linalg.vector_norm(formed, dim=(1, 2))
        return residuals, norms.view(count, -1)

    def _products(self, residuals: Tensor, rows: Tensor, groups: int) -> Tensor:
        """Sums of the outer products of so many groups of rows, [groups, outputs, width]."""
        if groups == rows.shape[0] * rows.shape[1]:
            return residuals.view(groups, -1, 1) * rows
        left, right = (each.reshape(groups, -1, each.shape[-1]) for each in (residuals, rows))
        return torch.bmm(left.transpose(1, 2), right)

    def _stacked(self, weights: Tensor) -> Tensor:
        """[draws, outputs, width]: weight, bias and zeros."""
        parts = [
            weights[:, place].reshape(len(weights), self._outputs, -1) for place in self._places[-1]
        ]
        return F.pad(torch.cat(parts, dim=2).double(), (0, self._width - self._used))

    def _flat(self, sums: Tensor) -> Tensor:
        """[draws, D] of [draws, residuals, width]."""
        flat, start = sums.new_empty(len(sums), self._dimension), 0
        for places, rows in zip(self._places, self._heights, strict=True):
            own = sums[:, start : start + rows]
            flat[:, places[0]] = own[..., : self._inputs].flatten(1)
            for place in places[1:]:
                flat[:, place] = own[..., self._inputs]
            start += rows
        return flat


def is_ours(loss: Loss) -> bool:
    """Whether a loss is this package's own, which gives a number of each example by itself."""
    if isinstance(loss, PersonLoss | MomentsLoss):
        return is_ours(loss.of_rows)
    if not isinstance(loss, FunctionType):
        return False
    if loss is per_example.cross_entropy:
        return True
    ours = loss.__globals__ is vars(tasks)
    return ours and loss.__qualname__.startswith(f"{tasks.Task.loss_on.__qualname__}.")
