# SPDX-License-Identifier: Apache-2.0
"""What a privacy promise means: sampler, neighbours and accountant as one object.

The three only make sense together. Poisson sampling with a fixed denominator bounds what one
record can change by C; a batch of fixed size swaps a record in for every one taken out, so it can
change the sum by 2C. A combination without a proof cannot be built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dpcohort._validate import choice
from dpcohort.errors import InputError

__all__ = ["AccountantName", "Contract", "Neighbours", "Sampler", "resolve_neighbours"]

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
