# SPDX-License-Identifier: Apache-2.0
"""What a privacy promise means: sampler, neighbours and accountant as one object.

The three only make sense together. Poisson sampling with a fixed denominator bounds what one
record can change by C; a batch of fixed size swaps a record in for every one taken out, so it can
change the sum by 2C. A combination without a proof cannot be built.

The numbers that accounting is asked about are checked here as well: they broadcast like those of a
numpy ufunc, so one call may ask about many clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, choice, float_array
from dpcohort.errors import InputError

Sampler = Literal["poisson", "fixed"]
Neighbours = Literal["zero-out", "replace-one"]
AccountantName = Literal["tight", "paper"]

_NATURAL_NEIGHBOURS: dict[str, Neighbours] = {"poisson": "zero-out", "fixed": "replace-one"}


def resolve_neighbours(sampler: str, neighbours: str | None) -> Neighbours:
    """The neighbouring relation in force: the one given, or the sampler's own.

    Example:
        >>> resolve_neighbours("poisson", None), resolve_neighbours("fixed", None)
        ('zero-out', 'replace-one')
    """
    choice("sampler", sampler, get_args(Sampler))
    if neighbours is None:
        return _NATURAL_NEIGHBOURS[sampler]
    choice("neighbours", neighbours, get_args(Neighbours))
    if sampler == "fixed" and neighbours == "zero-out":
        raise InputError(
            "neighbours",
            given=neighbours,
            allowed="'replace-one' when sampler = 'fixed'",
            next_step="A batch of fixed size swaps records, so one record changes the sum by up to "
            "2C; the replace-one guarantee covers zero-out. For less noise use "
            "sampler = 'poisson' with neighbours = 'zero-out'.",
        )
    return "zero-out" if neighbours == "zero-out" else "replace-one"


@dataclass(frozen=True, kw_only=True)
class Contract:
    """How batches are drawn, which data sets count as neighbours, and who computes the noise.

    Attributes:
        accountant: ``tight`` (smallest provable noise) or ``paper`` (the printed formula).
        sampler: ``poisson`` or ``fixed`` (a batch of fixed size, without replacement).
        neighbours: ``zero-out`` (one record replaced by a null record) or ``replace-one``.

    Example:
        >>> Contract.of("paper")
        Contract(accountant='paper', sampler='fixed', neighbours='replace-one')
    """

    accountant: AccountantName = "tight"
    sampler: Sampler = "poisson"
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        choice("accountant", self.accountant, get_args(AccountantName))
        resolve_neighbours(self.sampler, self.neighbours)

    @classmethod
    def of(
        cls, accountant: str, sampler: str | None = None, neighbours: str | None = None
    ) -> Contract:
        """A contract from words, the unsaid parts taken as that accountant's own."""
        choice("accountant", accountant, get_args(AccountantName))
        is_paper = accountant == "paper"
        chosen = sampler if sampler is not None else ("fixed" if is_paper else "poisson")
        resolved = resolve_neighbours(chosen, neighbours)
        return cls(
            accountant="paper" if is_paper else "tight",
            sampler="fixed" if chosen == "fixed" else "poisson",
            neighbours=resolved,
        )

    @property
    def sensitivity(self) -> float:
        """How far one record can move the clipped sum, in units of the clip C."""
        return 1.0 if self.neighbours == "zero-out" else 2.0


#: More steps than this are not accounted for.
MOST_STEPS = 10**12


def broadcast_fields(**columns: FloatArray) -> tuple[FloatArray, ...]:
    """The columns in their common shape; an error names the shapes that do not go together.

    Example:
        >>> broadcast_fields(epsilon=np.array([1.0, 2.0]), delta=np.array(1e-5))[1]
        array([1.e-05, 1.e-05])
    """
    try:
        return tuple(np.broadcast_arrays(*columns.values()))
    except ValueError:
        raise InputError(
            "shapes of " + ", ".join(columns),
            given=[column.shape for column in columns.values()],
            allowed="equal, or such that they broadcast",
        ) from None


def float_or_array(values: FloatArray) -> Any:
    """A Python float where there is one value, as numpy's functions do for scalars.

    Example:
        >>> float_or_array(np.array(0.5)), float_or_array(np.array([0.5, 1.0]))
        (0.5, array([0.5, 1. ]))
    """
    return float(values) if values.ndim == 0 else values


def whole_steps(steps: ArrayLike) -> FloatArray:
    """Numbers of steps as floats without a fraction.

    Example:
        >>> whole_steps([1, 20])
        array([ 1., 20.])
    """
    count = float_array("steps", steps, at_least=0, at_most=MOST_STEPS)
    fractions = count[np.floor(count) != count]
    if fractions.size:
        raise InputError(
            "steps", given=float(fractions.flat[0]), allowed="a whole number of at least 0"
        )
    return count
