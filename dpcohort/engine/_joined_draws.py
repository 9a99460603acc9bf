# SPDX-License-Identifier: Apache-2.0
"""Clipped integers of many private draws from passes of one public shape.

A pass is [groups, room] rows: each group has weights of its own, and its draws lie one behind the
other. ``room`` follows from public numbers: the sizes and rates of clients (:func:`room_for`).
What is left of it is filled up with a stored record that counts for nothing. So shapes never vary,
a GPU records the pass once and replays it, and how long it takes does not tell how many records
were drawn.

Batches are never cut. Should more be drawn than there is room for, with probability below
:data:`OVERFLOW` in a group and step, a second pass of the same shape adds the rest. Whoever watches
the clock sees that it did; round times of private runs are withheld, and no budget is charged.

**What leaks.** Where in a pass a record stands depends on how many were drawn before it, so its
bits must depend neither on its place nor on its neighbours. Layers that keep records apart by what
they are (``isolated``) have kernels that compute each number from one record; that they also add up
in the same order at every place is tried, for every shape before its first use, on made-up records,
with the very recording that is replayed: :func:`~dpcohort.models._each_alone.treats_alike`. A shape
that fails it is not used. Clipping, cutting off and the check of what comes of it are done by one
program for each record (``segment_kernel``), and integers are added, which is exact.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting._sampler import Sampler
from dpcohort.engine import _segment_kernel as segment_kernel
from dpcohort.engine._device_draws import UncapturableError, recorded
from dpcohort.engine._lattice import Lattice, gradient_norms, segment_sums
from dpcohort.engine.clipping import ClippedNetwork
from dpcohort.engine.clipping._layers import Part
from dpcohort.models._each_alone import treats_alike

#: A group has more records than there is room for with a probability below this.
OVERFLOW = 2.0**-20
_GRAIN = 16  # rooms come in so many sizes from a power of two to the next
_PART_NUMBERS = 1 << 30  # of all gradients of a pass

#: Inputs and targets of stored rows. SENSITIVE.
Gather = Callable[[Tensor], tuple[Tensor, Tensor]]
#: Parts of the gradients of records, and what places their sums (``ClippedNetwork``). SENSITIVE.
Gradients = Callable[..., tuple[list[Part], Callable[[Sequence[Tensor]], Tensor]]]


class JoinedDraw(NamedTuple):
    """Records of a draw, and the lattice that they are added up on.

    Attributes:
        rows: stored rows. SENSITIVE.
        lattice: of its sum.
    """

    rows: IntArray
    lattice: Lattice


class _Shape(NamedTuple):
    """Groups, rows of each, and draws of them all."""

    groups: int
    room: int
    draws: int


def room_for(
    sampler: Sampler, sizes: IntArray | Sequence[int], rates: FloatArray | Sequence[float]
) -> int:
    """Rows that batches of these draws have together at most, but for a chance of 2^-20.

    By Bernstein's inequality for records that are drawn independently, each with the rate of its
    client: exp(-t^2 / (2 v + 2 t / 3)) bounds the chance that a sum of mean m and variance v is
    above m + t. It is rounded up, so that cohorts of different clients have few shapes.

    Example:
        >>> from dpcohort.accounting._samplers import sampler_of
        >>> room_for(sampler_of("poisson"), [600] * 10, [128 / 600] * 10)
        1472
        >>> room_for(sampler_of("fixed"), [600] * 10, [128 / 600] * 10)
        1280
    """
    n, r = np.asarray(sizes, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    most = float((n * r).sum())
    if not sampler.has_constant_batches:
        variance, chance = float((n * r * (1 - r)).sum()), -math.log(OVERFLOW)
        most += chance / 3 + math.sqrt(chance**2 / 9 + 2 * chance * variance)
    room = max(1, min(math.ceil(most - 1e-6), int(n.sum())))
    grain = max(1, (1 << room.bit_length() - 1) // _GRAIN)
    return -(-room // grain) * grain


class JoinedDraws:
    """Adds up the clipped gradients of draws that share passes.

    Args:
        network: of layers that keep records apart.
        gather: inputs and targets of stored rows.
        made_up: so many made-up records, to try shapes on.
        weights: [D] to try them at.
        most_rows: of a pass.
    """

    def __init__(
        self,
        network: ClippedNetwork,
        gather: Gather,
        made_up: Callable[[int], Sequence[Tensor]],
        weights: Tensor,
        *,
        most_rows: int,
    ) -> None:
        self._network, self._gather, self._made_up = network, gather, made_up
        self._weights = weights
        parts, _ = network.own_gradients(weights, *made_up(2))
        numbers = sum(one.shape[1] for part in parts for one in part)
        self._most_rows = max(1, min(most_rows, _PART_NUMBERS // numbers))
        self._passes: dict[_Shape, _Pass | None] = {}
        self._kind = _RecordedPass if segment_kernel.fits(parts) else _PlainPass
        self._pool = torch.cuda.graph_pool_handle() if weights.is_cuda else None

    @torch.no_grad()
    def sums(
        self,
        weights: Tensor,
        draws: Sequence[JoinedDraw],
        *,
        room: int,
        together: bool = False,
    ) -> Tensor | None:
        """The draws' clipped gradients on their lattices, added up. SENSITIVE.

        Args:
            weights: [groups, D]; the draws are split evenly among the groups, in order.
            draws: what to add up.
            room: rows of a group that a pass has place for, public; more come in further passes.
            together: whether all draws of a group are added to one sum.

        Returns:
            [draws, D] int64, or [groups, D], in memory that the next call uses again. None where
            the lattices are too fine, or records were not treated alike.
        """
        groups = len(weights)
        room = -(-room // -(-room * groups // self._most_rows))
        if max(draw.lattice.bound for draw in draws) * room >= segment_kernel.LARGEST_SUM:
            return None
        shape = _Shape(groups, room, len(draws))
        if shape not in self._passes:
            self._passes[shape] = self._tried(shape)
        own = self._passes[shape]
        if own is None:
            return None
        first, *rest = _packed(draws, shape)
        try:
            total = own.sums(weights, self._gather, first)
            for packed in rest:
                total = total.clone() + own.sums(weights, self._gather, packed)
        except Exception:  # of one record, which is not told; draw by draw it is looked for
            return None
        return total.view(groups, -1, total.shape[1]).sum(1) if together else total

    def _tried(self, shape: _Shape) -> _Pass | None:
        """A pass of this shape, if made-up records have the same bits at all its places."""
        made_up = self._made_up(shape.groups * shape.room)
        rows = torch.zeros(len(made_up[0]), dtype=torch.int64, device=self._weights.device)
        records = [  # in memory as stored records come in
            torch.empty_like(one).copy_(given)
            for one, given in zip(self._gather(rows), made_up, strict=True)
        ]
        for own_convolutions in (False, True):
            own = self._kind(
                functools.partial(self._network.own_gradients, own_convolutions=own_convolutions),
                records,
                self._weights.repeat(shape.groups, 1),
                shape,
                self._pool,
            )
            if own.treats_alike(made_up):
                return own
        return None


class _Packed(NamedTuple):
    """What a pass has at which places.

    Attributes:
        rows: [groups x room] stored rows; 0 where there is nothing.
        terms: [2, groups x room], C and bound of each; bound 0 where there is nothing.
        spans: where each draw begins and ends.
        draws: those.
    """

    rows: IntArray
    terms: FloatArray
    spans: IntArray
    draws: Sequence[JoinedDraw]


def _packed(draws: Sequence[JoinedDraw], shape: _Shape) -> Iterator[_Packed]:
    """The passes that draws take: nearly always one, which is taken without any record as well."""
    per_group = len(draws) // shape.groups
    groups = [draws[first : first + per_group] for first in range(0, len(draws), per_group)]
    most = max(sum(draw.rows.size for draw in own) for own in groups)
    for first in range(0, max(1, most), shape.room):
        rows = np.zeros(shape.groups * shape.room, dtype=np.int64)
        terms = np.zeros((2, rows.size))
        terms[0] = 1.0
        spans = []
        for number, own in enumerate(groups):
            begin = -first  # of a draw, from the first place of its group in this pass
            for draw in own:
                part = draw.rows[max(0, -begin) : max(0, shape.room - begin)]
                start = number * shape.room + min(max(begin, 0), shape.room)
                stop = start + part.size
                rows[start:stop] = part
                terms[0, start:stop], terms[1, start:stop] = draw.lattice.clip, draw.lattice.bound
                spans.append((start, stop))
                begin += draw.rows.size
        yield _Packed(rows, terms, np.array(spans), draws)


class _Pass(ABC):
    """A pass of one shape.

    Args:
        gradients: of its records, in parts.
        records: made-up inputs and targets of all its places, in memory that it keeps.
        weights: [groups, D], in memory that it keeps.
        shape: its own.
        pool: memory of recordings.
    """

    def __init__(
        self, gradients: Gradients, records: Sequence[Tensor], weights: Tensor, shape: _Shape,
        pool: Any,
    ) -> None:  # fmt: skip
        self._gradients, self._records, self._weights = gradients, records, weights
        self._shape = shape

    @abstractmethod
    def observed(self) -> list[Tensor]:
        """All that the integers of the records are made of, each [rows, numbers]."""

    @abstractmethod
    def sums(self, weights: Tensor, gather: Gather, packed: _Packed) -> Tensor:
        """Sums [draws, D] of what is packed, in memory that is used again."""

    def load(self, records: Sequence[Tensor]) -> None:
        """Put records to its places."""
        for own, given in zip(self._records, records, strict=True):
            own.copy_(given)

    def treats_alike(self, made_up: Sequence[Tensor]) -> bool:
        """Whether made-up records have the same bits at all places, beside any others."""

        def rows_of(which: int, *records: Tensor) -> Tensor:
            self.load(records)
            return self.observed()[which].clone()

        return all(
            treats_alike(functools.partial(rows_of, which), made_up, [len(made_up[0])])
            for which in range(len(self.observed()))
        )


class _RecordedPass(_Pass):
    """By the kernels of a GPU, recorded if the network allows it."""

    def __init__(
        self, gradients: Gradients, records: Sequence[Tensor], weights: Tensor, shape: _Shape,
        pool: Any,
    ) -> None:  # fmt: skip
        super().__init__(gradients, records, weights, shape, pool)
        self._size = len(records[0])
        self._words = torch.zeros(
            3 * self._size + 2 * shape.draws, dtype=torch.int64, device=weights.device
        )
        self._terms[:] = 1.0
        self._spans[1] = self._size  # all records count in what is recorded
        self._parts: list[Part] = []
        self._recording: tuple[torch.cuda.CUDAGraph, Tensor] | None = None
        with suppress(UncapturableError):
            self._recording = recorded(self._compute, pool=pool)

    @property
    def _terms(self) -> Tensor:
        """C and bound of each record."""
        return self._words[self._size : 3 * self._size].view(torch.float64).view(2, -1)

    @property
    def _spans(self) -> Tensor:
        """Where each draw begins and ends."""
        return self._words[3 * self._size :].view(2, -1)

    def _compute(self) -> Tensor:
        self._parts, placed = self._gradients(self._weights, *self._records)
        return placed(segment_sums(self._parts, *self._terms, *self._spans))

    def _replay(self) -> Tensor:
        if self._recording is None:
            return self._compute()
        graph, found = self._recording
        graph.replay()
        return found

    def observed(self) -> list[Tensor]:
        """The gradients' parts; of the rest each program sees one record."""
        self._replay()
        return [one for part in self._parts for one in part]

    def sums(self, weights: Tensor, gather: Gather, packed: _Packed) -> Tensor:
        """By one recording, which is told everything in one vector of words."""
        terms = packed.terms.reshape(-1).view(np.int64)
        words = [packed.rows, terms, packed.spans.T.reshape(-1)]
        packed_words = torch.from_numpy(np.concatenate(words)).pin_memory()
        self._words.copy_(packed_words, non_blocking=True)
        self._weights.copy_(weights)
        self.load(gather(self._words[: self._size]))
        return self._replay()


class _PlainPass(_Pass):
    """By the operations of torch, one group and one draw after the other."""

    def observed(self) -> list[Tensor]:
        """The gradients' parts and norms."""
        groups = []
        for group in range(self._shape.groups):
            parts, _ = self._of_group(group)
            norms, _ = gradient_norms(parts)
            groups.append([norms[:, None], *(one for part in parts for one in part)])
        return [torch.cat(some) for some in zip(*groups, strict=True)]

    def sums(self, weights: Tensor, gather: Gather, packed: _Packed) -> Tensor:
        """With every place of its group looked at for every draw."""
        self._weights.copy_(weights)
        self.load(gather(torch.from_numpy(packed.rows).to(weights.device)))
        groups, room, draws = self._shape
        total = torch.zeros(draws, weights.shape[1], dtype=torch.int64, device=weights.device)
        per_group = draws // groups
        for group in range(groups):
            parts, placed = self._of_group(group)
            places = torch.arange(group * room, (group + 1) * room)
            for number in range(group * per_group, (group + 1) * per_group):
                start, stop = packed.spans[number].tolist()
                there = ((places >= start) & (places < stop)).to(weights.device)
                own = packed.draws[number].lattice.clipped_sums(parts, there)
                total[number] = placed(own)
        return total

    def _of_group(self, group: int) -> tuple[list[Part], Callable[[Sequence[Tensor]], Tensor]]:
        own = slice(group * self._shape.room, (group + 1) * self._shape.room)
        records = [one[own] for one in self._records]
        return self._gradients(self._weights[group], *records)
