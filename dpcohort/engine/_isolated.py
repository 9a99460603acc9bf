# SPDX-License-Identifier: Apache-2.0
"""Gradients and losses of single records, each a function of that record and the weights alone.

What a record contributes must not depend on the others, to the last bit: a server that chooses the
weights can make last bits count. Were others computed differently when a record is there, their
numbers would tell that it was drawn, and no batch would hide it. How a record is computed follows
from what the model is proved to do, never from what it did when it was tried:

**Shared passes**, for models whose layers keep examples apart by what they are
(:func:`~dpcohort.models._apart.in_known_parts`), with a loss of this package: the engine's
:meth:`~dpcohort.engine.clipping.ClippedNetwork.own_gradients` of many records at once. Each row of
a product of matrices is added up from one row of the inputs, so that no number of a record meets
one of another. In which order it is added up could still depend on its place and on how many there
are. So a pass has one of a few sizes, and is filled up with blank records, which add nothing;
matrices begin each line at a whole cache line; and, as what multiplies them on this machine is not
ours, it is tried at the start, on made-up records: at each size, at each place, beside whatever
neighbours, a record's gradient must have the same bits. A record that a
layer cannot take (a token that it does not know) has a gradient that is not a number; should one
fail all the same, each record of its pass is computed beside blanks, which is the same to the bit.

**Each alone** (:class:`~dpcohort.models._each_alone.EachAlone`), for all other models and losses:
as a fixed list of operations on one record, or in a process of its own for each.

A record whose gradient cannot be computed contributes nothing; that it cannot is not told.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpcohort._validate import IntArray
from dpcohort.engine import _segment_kernel as segment_kernel
from dpcohort.engine._joined_draws import JoinedDraws
from dpcohort.engine._lattice import Lattice, gradient_norms
from dpcohort.engine._linear import Gather, LinearModel, is_ours
from dpcohort.engine._rounds import one_thread_each
from dpcohort.engine.clipping import (
    ClippedNetwork,
    ClippingPath,
    FlatLayout,
    Loss,
    refuse_unfit_layers,
)
from dpcohort.engine.clipping._network import made_up_targets
from dpcohort.errors import InputError
from dpcohort.models._apart import in_known_parts
from dpcohort.models._each_alone import (
    EachAlone,
    Function,
    filled_up,
    in_a_pass,
    made_up_inputs,
    treats_alike,
)
from dpcohort.plugins import telling

#: Records of a pass. On a GPU, which takes another kernel for every size, it is the largest that
#: fits: passes cost as much to start as to do.
_PASS_SIZES = {"cpu": (32, 64, 96, 128), "cuda": (32, 64, 128, 256, 512, 1024)}
#: Numbers of their gradients, and what is kept of them on the way.
_PASS_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 27}
_KEPT_NUMBERS = {"cpu": 160 << 18, "cuda": 2 << 30}
_MOST_NUMBERS = 1 << 27  # of gradients in the smallest pass
_ROWS_TOGETHER = 8  # of gradients that are cut to integers


_PLAIN = "Keep nothing in it but parameters, buffers and plain values."


class IsolatedModel:
    """A model whose gradients and losses of single records depend on nothing else.

    Args:
        model: any module; it is copied.
        loss: one number for each example.
        inputs: [n, ...] of the right shape and type, on the device; no number of it is looked at.
        targets: [n, ...].
        shared: whether passes may be shared by records where that is proved to change nothing.
        gradients: whether gradients are wanted, or losses alone.

    Raises:
        InputError: the model cannot be computed on made-up records.

    Attributes:
        path: how records are computed, and why so.

    Example:
        >>> import numpy as np
        >>> single = IsolatedModel(nn.Linear(2, 1, bias=False), lambda o, t: o[:, 0],
        ...                        torch.zeros(1, 2), torch.zeros(1))
        >>> single.path.kind, single.path.reason
        ('vmap', 'the loss is your own, and might mix records; Linear is a fixed list of ...')
        >>> lattice = Lattice(1.0, 1.0)
        >>> records = torch.tensor([[3.0, 4.0], [float("inf"), 0.0]]), torch.zeros(2)
        >>> total = single.clipped_sum(torch.zeros(2), lattice, np.arange(2),
        ...                            lambda rows: (records[0][rows], records[1][rows]), 2)
        >>> [round(float(one * lattice.unit), 3) for one in total]
        [0.6, 0.8]
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        *,
        shared: bool = True,
        gradients: bool = True,
    ) -> None:
        refuse_unfit_layers(model)
        with telling(f"{type(model).__name__} cannot be copied", f" {_PLAIN}"):
            self._model = copy.deepcopy(model)
        self._loss = loss
        self.layout = FlatLayout(model)
        self._blanks = [one.new_zeros(1, *one.shape[1:]) for one in (inputs, targets)]
        self._sizes: Sequence[int] = ()
        self._network: ClippedNetwork | None = None
        #: The closed form of a linear model; other models have none.
        self._linear: LinearModel | None = None
        reason = "records are computed one by one here"
        if shared:
            self._network, reason = self._shared()
        self._alone: EachAlone | None = None
        if self._network is None:
            self._alone = self._gradients_alone() if gradients else self._losses_alone
            self.path = ClippingPath(self._alone.kind, f"{reason}; {self._alone.reason}")
        else:
            self.path = ClippingPath("stacked", "every layer is known to keep records apart")

    @property
    def how(self) -> str:
        """How records are computed, and why so, in a sentence."""
        if self._alone is None:
            return "Records are computed side by side: every layer is known to keep them apart."
        seconds = f"about {1000 * self._alone.seconds:.2g} seconds per 1,000"
        return f"Records are computed each alone, {seconds}: {self.path.reason}."

    def for_another_thread(self) -> IsolatedModel:
        """The same, for passes at the same time."""
        other = copy.copy(self)
        if self._network is not None:
            path = self._network.path
            other._network = ClippedNetwork(self._known, self._loss, *self._made_up(1), path=path)
            other._network.own_passes = self._network.own_passes
        elif self.path.kind == "process":
            with suppress(InputError):  # where only the first can have processes, all share them
                other._alone = self._gradients_alone()
        return other

    def record_frequent_passes(self, weights: Tensor, *, workers: int) -> None:
        """Record passes that come often, where they are tried as the others were.

        Args:
            weights: [D], any.
            workers: how many threads run passes, none of them now.
        """
        if self._network is None or not self._network.record_own_gradients(
            weights, workers=workers
        ):
            return
        if not self._is_tried(self._network):
            self._network.own_passes.update(dict.fromkeys(self._network.own_passes))

    def joined_draws(self, gather: Callable[[Tensor], Any], most_rows: int) -> JoinedDraws | None:
        """What adds up many draws in one pass; None where records are computed one by one.

        Args:
            gather: gives inputs and targets of stored rows.
            most_rows: of a pass.
        """
        if self._network is None:
            return None
        return JoinedDraws(
            self._network, gather, self._made_up, self._shaken(), most_rows=most_rows
        )

    @torch.no_grad()
    def clipped_sums(
        self,
        weights: Sequence[Tensor],
        lattices: Sequence[Lattice],
        rows: Sequence[IntArray],
        gather: Gather,
        batch_sizes: Sequence[int],
    ) -> Tensor:
        """The records' gradients, each clipped and on the lattice, added up by draw. SENSITIVE.

        Args:
            weights: [D] of each draw.
            lattices: of the sums.
            rows: of the records of each draw.
            gather: gives their inputs and targets.
            batch_sizes: about how many there are; public.

        Returns:
            [draws, D] int64. A record without a gradient adds nothing.
        """
        if self._linear is not None:
            return self._linear.integer_sums(
                torch.stack(list(weights)), rows, gather, batch_sizes, lattices=lattices
            )
        draws = zip(weights, lattices, rows, strict=True)
        return torch.stack([self._sum_of_one(*one, gather) for one in draws])

    def clipped_sum(
        self, weights: Tensor, lattice: Lattice, rows: IntArray, gather: Gather, batch_size: int
    ) -> Tensor:
        """The same of one draw, [D]."""
        return self.clipped_sums([weights], [lattice], [rows], gather, [batch_size])[0]

    def _sum_of_one(
        self, weights: Tensor, lattice: Lattice, rows: IntArray, gather: Gather
    ) -> Tensor:
        total = torch.zeros(weights.numel(), dtype=torch.int64, device=weights.device)
        start, most = 0, self._sizes[-1] if self._sizes else self._at_a_time
        while start < len(rows):
            left = min(len(rows) - start, most)
            records = gather(rows[start : start + left])
            if self._alone is not None:
                total += lattice.clipped_sum(self._alone([weights], records))
            else:  # no more of the pass is blank than need be: a record's bits are the same in all
                size = next(size for size in self._sizes if size >= left)
                total += self._pass(weights, lattice, records, range(left), size)
            start += left
        return total

    @torch.no_grad()
    def losses(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, [n]; NaN of one that has none. SENSITIVE."""
        if self._network is None:
            found = self._losses_alone([weights], [inputs, targets])
            return found[:, 0]
        size = self._sizes[-1]
        compute = partial(self._network.own_losses, weights)
        nothing = weights.new_full((), torch.nan)
        parts = [
            in_a_pass(compute, self._blanks, [inputs[part], targets[part]], size, nothing)
            for part in (slice(start, start + size) for start in range(0, len(inputs), size))
        ]
        return torch.cat(parts) if parts else weights.new_zeros(0)

    @property
    def _at_a_time(self) -> int:
        return max(1, (1 << 22) // self.layout.dimension)

    def _pass(
        self, weights: Tensor, lattice: Lattice, records: Sequence[Tensor], there: Sequence[int],
        size: int,
    ) -> Tensor:  # fmt: skip
        """The clipped sum of some of the records, at their places in a pass with blanks."""
        assert self._network is not None
        filled = filled_up(self._blanks, records, there, size)
        counts = torch.zeros(size, dtype=torch.bool, device=weights.device)
        counts[list(there)] = True
        try:
            parts, placed = self._network.own_gradients(weights, *filled)
        except Exception:  # of one record, which is not told; the others give what they always do
            total = torch.zeros(weights.numel(), dtype=torch.int64, device=weights.device)
            for place in there if len(there) > 1 else ():
                total += self._pass(weights, lattice, records, [place], size)
            return total
        # No time goes into the integers of blanks; how few rows they are cut of is tried as well.
        rows = -(-(there[-1] + 1) // _ROWS_TOGETHER) * _ROWS_TOGETHER
        parts = [tuple(one[:rows] for one in part) for part in parts]
        return placed(lattice.clipped_sums(parts, counts[:rows]))

    def _shared(self) -> tuple[ClippedNetwork | None, str]:
        """The network that computes records side by side; None, and why, where it may not."""
        if not is_ours(self._loss):
            return None, "the loss is your own, and might mix records"
        dimension, kind = self.layout.dimension, self._blanks[0].device.type
        sizes = _PASS_SIZES.get(kind, _PASS_SIZES["cpu"])
        if sizes[0] * dimension > _MOST_NUMBERS:
            return None, f"{sizes[0]} gradients of {dimension:,} numbers are too large"
        known, reason = in_known_parts(self._model, self._made_up(3)[0], sizes[0])
        if known is None:
            return None, reason
        if FlatLayout(known).places != self.layout.places:
            return None, "its parameters are not those of its layers"
        self._known = known
        tables = [part for part in known.modules() if isinstance(part, nn.Embedding)]
        if kind != "cpu" and any(not table.weight.requires_grad for table in tables):
            return None, "a token that a frozen table does not have would end all work on a GPU"
        with one_thread_each():
            linear = LinearModel.of(known, self._loss, *self._blanks)
            path = None if linear is None else linear.path
            network = ClippedNetwork(known, self._loss, *self._made_up(3), path=path)
            if network.path.kind != "stacked":
                return None, network.path.reason
            kept = _KEPT_NUMBERS.get(kind, 1) // network.path.floats_per_example
            most = max(sizes[0], min(kept, _PASS_NUMBERS.get(kind, 1) // dimension))
            self._sizes = [size for size in sizes if size <= most][0 if kind == "cpu" else -1 :]
            if not self._is_tried(network):
                self._sizes = ()
                return None, "on this machine a record's last bits depend on the others in a batch"
            if linear is not None and linear.keeps_apart(
                self._shaken(), *self._made_up(linear.line)
            ):
                self._linear = linear
        return network, ""

    @torch.no_grad()
    def _is_tried(self, network: ClippedNetwork) -> bool:
        """Whether made-up records have the same bits at all sizes and places, beside any others."""
        weights = self._shaken()

        def rows_of(*records: Tensor) -> Tensor:
            """All that a record's integers are made of, and its loss."""
            parts, _ = network.own_gradients(weights, *records)
            losses = network.own_losses(weights, *records)[:, None]
            flat = [rows.double() for part in parts for rows in part]
            if segment_kernel.fits(parts):  # which take one record at a time
                return torch.cat([losses, losses, *flat], dim=1)
            norms, _ = gradient_norms(parts)
            few = [
                gradient_norms(
                    [tuple(one[at : at + _ROWS_TOGETHER] for one in part) for part in parts]
                )
                for at in range(0, len(norms), _ROWS_TOGETHER)
            ]
            norms = torch.stack([norms, torch.cat([some for some, _ in few])], dim=1)
            return torch.cat([norms, losses, *flat], dim=1)

        made_up = self._made_up(self._sizes[-1])
        norms, of_few = rows_of(*made_up)[:, :2].T
        return torch.equal(norms, of_few) and treats_alike(rows_of, made_up, self._sizes)

    def _shaken(self) -> Tensor:
        start = self.layout.flatten(self._model)
        return start + 0.1 * torch.cos(torch.arange(start.numel(), device=start.device)).to(start)

    def _made_up(self, count: int) -> list[Tensor]:
        inputs, targets = self._blanks
        return [made_up_inputs(self._model, inputs, count), made_up_targets(targets, count)]

    def _gradients_alone(self) -> EachAlone:
        return self._each_alone(self._gradient_on, self.layout.dimension)

    @cached_property
    def _losses_alone(self) -> EachAlone:
        return self._each_alone(self._loss_on, 1)

    def _each_alone(self, function_on: Callable[[torch.device], Function], width: int) -> EachAlone:
        weights, name = self._shaken(), type(self._model).__name__
        like = weights.new_zeros(width)
        with one_thread_each():
            return EachAlone(function_on, [weights], self._made_up(3), like=like, what=name)

    def _loss_on(self, device: torch.device) -> Function:
        model, layout = copy.deepcopy(self._model).to(device), self.layout
        loss = self._loss

        def single(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(model, layout.unflatten(weights), (x[None],))
            return loss(outputs, y[None]).sum()[None]

        return single

    def _gradient_on(self, device: torch.device) -> Function:
        single = self._loss_on(device)

        def gradient(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
            point = weights.detach().requires_grad_()
            with torch.enable_grad():
                (found,) = torch.autograd.grad(single(point, x, y), point)
            return found

        return gradient
