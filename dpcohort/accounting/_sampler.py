# SPDX-License-Identifier: Apache-2.0
"""What a sampler is: how batches are drawn, and what that makes of the noise added to them.

A sampler answers for itself. Accounting asks it for the privacy losses of one use, engines and
guards for the records of a batch, the lattice of distributed noise for its largest batch. A *use*
is what composes independently of all others: one local step, or, of a sampler that draws several
local steps together, all of them.

To add one: a subclass of :class:`Sampler` in a file of its own, and its name in
:mod:`dpcohort.accounting._samplers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray, choice
from dpcohort.accounting._composition import Loss
from dpcohort.errors import InputError

Neighbours = Literal["zero-out", "replace-one"]
#: How far one record can move the clipped sum, in units of the clip C.
SENSITIVITY: dict[Neighbours, float] = {"zero-out": 1.0, "replace-one": 2.0}
#: Which integrand gives delta of many uses (:mod:`dpcohort.accounting._calibration`).
Pair = Literal["remove", "add", "replace", "fixed"]
WordArray = NDArray[np.uint64]
#: Positions, in increasing order, of the records used in a local step of one draw. SENSITIVE.
Batches = Callable[[int], IntArray]


class WordStream(Protocol):
    """Random bits of one draw of one client."""

    @property
    def is_fresh(self) -> bool:
        """Whether every request is answered anew; otherwise equal requests have equal answers."""
        ...

    def words(self, count: int, step: int) -> WordArray:
        """So many uniform 64-bit words for one local step."""
        ...


@dataclass(frozen=True)
class Sampler(ABC):
    """How the batches of a draw are made.

    Attributes:
        local_steps: local steps of one use; above 1 only for a sampler that draws them together.
    """

    local_steps: int = 1

    #: Its name in files, configs and messages.
    name: ClassVar[str]
    #: Neighbouring relation that is meant where none is named.
    natural_neighbours: ClassVar[Neighbours]
    #: Neighbouring relations without a proof, and what to do instead.
    unproved: ClassVar[Mapping[Neighbours, str]] = {}
    #: Whether every batch has exactly B records.
    has_constant_batches: ClassVar[bool] = False
    #: Whether dp-accounting has a tight bound for it.
    is_in_library: ClassVar[bool] = False
    #: Whether the local steps of a draw are drawn together.
    is_joint: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name

    def neighbours(self, given: str | None) -> Neighbours:
        """The neighbouring relation in force: the one given, or the sampler's own.

        Raises:
            InputError: there is no proof for it.
        """
        if given is None:
            return self.natural_neighbours
        relation: Neighbours = "zero-out" if given == "zero-out" else "replace-one"
        choice("neighbours", given, get_args(Neighbours))
        if relation in self.unproved:
            raise InputError(
                "neighbours",
                given=given,
                allowed=f"{self.natural_neighbours!r} when sampler = {self.name!r}",
                next_step=self.unproved[relation],
            )
        return relation

    def over(self, local_steps: int) -> Sampler:
        """The same for draws of so many local steps; itself where each step is drawn alone."""
        return self

    def uses(self, steps: int) -> int:
        """How many independent uses so many local steps are.

        Raises:
            InputError: they are no whole number of draws.
        """
        if steps % self.local_steps:
            raise InputError(
                "steps", given=steps, allowed=f"a multiple of the {self.local_steps} of one draw"
            )
        return steps // self.local_steps

    @abstractmethod
    def losses(
        self, noise_multiplier: float, sampling_rate: float, neighbours: Neighbours
    ) -> tuple[Loss, ...]:
        """Privacy losses of one use that dominate every other, one for each order of neighbours.

        Args:
            noise_multiplier: z.
            sampling_rate: r.
            neighbours: a relation that the sampler allows.
        """

    def integrand(self, neighbours: Neighbours) -> Pair | None:
        """Which contour integral calibrates its noise; None where the certificate does."""
        return None

    def rates(self, sizes: IntArray, batch_sizes: IntArray) -> FloatArray:
        """r, the probability that a record is in one batch.

        Args:
            sizes: n.
            batch_sizes: the public B by which sums are divided.

        Example:
            >>> from dpcohort.accounting._samplers import sampler_of
            >>> sampler_of("poisson").rates(np.array([640, 256]), np.array([128, 128]))
            array([0.2, 0.5])
        """
        return np.asarray(batch_sizes / sizes, dtype=np.float64)

    def batch_size(self, rate: float, size: int) -> int | None:
        """B of a rate; None where the rate is not that of a whole number of records.

        Raises:
            InputError: the rate does not tell B.
        """
        batch = round(rate * size)
        return batch if batch >= 1 and abs(batch / size - rate) <= _SAME_RATE else None

    def largest_batch(self, sizes: IntArray, batch_sizes: IntArray) -> IntArray:
        """The most records that a batch can have: all of them, unless every batch has B."""
        return sizes

    def takes_all(self, rates: FloatArray) -> bool:
        """Whether all records are in every batch, so that one round is like another."""
        return not self.has_constant_batches and bool(np.all(rates == 1))

    @abstractmethod
    def draw(self, stream: WordStream, *, size: int, rate: float, batch_size: int) -> Batches:
        """The batches of one draw. SENSITIVE.

        Args:
            stream: random bits of the draw.
            size: n.
            rate: r.
            batch_size: B.
        """


_SAME_RATE = 1e-12
