# SPDX-License-Identifier: Apache-2.0
"""What a privacy promise means: unit, sampler, neighbours, accountant and trust as one object.

They only make sense together. Poisson sampling with a fixed denominator bounds what one
record can change by C; a batch of fixed size swaps a record in for every one taken out, so it can
change the sum by 2C. A combination without a proof cannot be built.

Trust says whose noise a client counts on. *Local*: on its own alone; whoever sees its update may be
curious and everybody else may help. *Distributed*: the server sees only the sum of a cohort's
updates (secure aggregation), and of the members' shares of noise at least h surely are in it and
unknown to the server. That number follows from how many others may collude and how many may vanish.

The numbers that accounting is asked about are checked here as well: they broadcast like those of a
numpy ufunc, so one call may ask about many clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, choice, float_array, number, whole_number
from dpcohort.accounting._sampler import SENSITIVITY, Neighbours, Sampler
from dpcohort.accounting._samplers import SAMPLERS, sampler_of
from dpcohort.accounting._unit import UNITS, Unit, unit_of
from dpcohort.errors import InputError
from dpcohort.plain_text import counted

AccountantName = Literal["tight", "paper"]
Trust = Literal["local", "distributed"]
#: What happens where the paper's noise does not certify.
Guard = Literal["refuse", "lift"]
#: Which expected noise a selection weighs.
NoiseModel = Literal["exact", "paper"]


@dataclass(frozen=True, kw_only=True)
class Contract:
    """How batches are drawn, which data sets count as neighbours, and who computes the noise.

    Below, a record is one unit: one row, or all rows of one person that are used.

    Attributes:
        accountant: ``tight`` (smallest provable noise) or ``paper`` (the printed formula).
        sampler: how batches are drawn; its name may be given (``poisson``, ``fixed``, ...).
        neighbours: ``zero-out`` (one record replaced by a null record) or ``replace-one``.
        trust: ``local`` (each client adds all the noise it needs) or ``distributed`` (the noise of
            a cohort protects its members together, under secure aggregation).
        colluding: of a cohort's other members, how many may help the server: a whole number, or a
            share below 1 of them.
        dropouts: how many members may vanish after they promised their noise.
        unit: of privacy: ``record`` or ``person``; its name may be given.

    Example:
        >>> Contract.of("paper").sampler.name, Contract.of("paper").neighbours
        ('fixed', 'replace-one')
        >>> Contract(trust="distributed", colluding=0.5, dropouts=1).honest(10)
        4
    """

    accountant: AccountantName = "tight"
    sampler: Sampler = SAMPLERS["poisson"]
    neighbours: Neighbours = "zero-out"
    trust: Trust = "local"
    colluding: float = 0
    dropouts: int = 0
    unit: Unit = UNITS["record"]

    def __post_init__(self) -> None:
        choice("accountant", self.accountant, get_args(AccountantName))
        object.__setattr__(self, "sampler", sampler_of(self.sampler))
        self.sampler.neighbours(self.neighbours)
        if self.sampler.is_joint and self.accountant != "tight":
            raise InputError(
                "accountant",
                given=self.accountant,
                allowed=f"'tight' when sampler = {self.sampler.name!r}",
                next_step="The printed formula is about steps that are drawn independently.",
            )
        object.__setattr__(self, "unit", unit_of(self.unit))
        if self.unit.name == "client":
            raise InputError(
                "unit",
                given="client",
                allowed="'record' or 'person'",
                next_step="Training computes noise for records, drawn secretly; which clients are "
                "in a cohort the server sees. To hide a client as a whole let it add noise to its "
                "whole update, as one record: dpcohort.deploy.whole_update.",
            )
        choice("trust", self.trust, get_args(Trust))
        given: object = self.colluding
        whole = isinstance(given, Integral) or given == 0
        try:
            number("colluding", given, at_least=0, **({} if whole else {"below": 1}))
        except InputError:
            raise InputError(
                "colluding",
                given=given,
                allowed="a whole number of members (0, 1, 2, ...), or a share of them below 1",
            ) from None
        # Plain numbers, so that equal contracts are written alike.
        colluding = int(self.colluding) if whole else float(self.colluding)
        object.__setattr__(self, "colluding", colluding)
        object.__setattr__(self, "dropouts", whole_number("dropouts", self.dropouts, at_least=0))
        if self.trust == "local" and (self.colluding or self.dropouts):
            name = "colluding" if self.colluding else "dropouts"
            raise InputError(
                name,
                given=getattr(self, name),
                allowed="0 where trust = 'local', in which everybody else may collude",
                next_step="To count on others under secure aggregation set trust = 'distributed'.",
            )

    @property
    def is_distributed(self) -> bool:
        """Whether a client counts on the noise of others."""
        return self.trust == "distributed"

    def honest(self, cohort_size: int) -> int:
        """h: members of a cohort, oneself among them, whose shares of noise surely remain.

        Raises:
            InputError: more may collude or vanish than there are others.
        """
        if not self.is_distributed:
            return 1
        others = cohort_size - 1
        colluding = self.colluders(cohort_size)
        if colluding + self.dropouts > others:
            known = f"only {counted(others, 'other')}" if others else "no others"
            raise InputError.because(
                f"of a cohort of {cohort_size}, {colluding} may collude with the server and "
                f"{self.dropouts} may drop out, but each member has {known}. Lower "
                "privacy.colluding or privacy.dropouts, or raise training.cohort_size."
            )
        return cohort_size - colluding - self.dropouts

    def colluders(self, cohort_size: int) -> int:
        """How many of a cohort's other members may help the server; a share is rounded up.

        Example:
            >>> Contract(trust="distributed", colluding=0.07).colluders(101)
            7
        """
        if self.colluding >= 1:
            return int(self.colluding)
        # As it is written: 0.07 is a little more than seven hundredths in binary.
        return math.ceil(Fraction(repr(float(self.colluding))) * (cohort_size - 1))

    def settings(self) -> dict[str, Any]:
        """Every field as a plain value, by name."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"sampler": self.sampler.name, "unit": self.unit.name}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a plan's file has them; trust only where it is not local.

        So is a unit that is the record.
        """
        plain = self.settings()
        if self.unit.name == "record":
            del plain["unit"]
        if not self.is_distributed:
            for name in ("trust", "colluding", "dropouts"):
                del plain[name]
        return plain

    @classmethod
    def of(
        cls,
        accountant: str,
        sampler: str | Sampler | None = None,
        neighbours: str | None = None,
        **other: Any,
    ) -> Contract:
        """A contract from names, those that are not given taken as that accountant's own."""
        choice("accountant", accountant, get_args(AccountantName))
        if sampler is None:
            sampler = "fixed" if accountant == "paper" else "poisson"
        drawn_by, named = sampler_of(sampler), cast(AccountantName, accountant)
        relation = drawn_by.neighbours(neighbours)
        return cls(accountant=named, sampler=drawn_by, neighbours=relation, **other)

    def sampling(self, local_steps: int = 1) -> dict[str, Any]:
        """How batches are drawn and who are neighbours, as events and calibration take it.

        Args:
            local_steps: of one draw; a sampler may draw them together.
        """
        return {"sampler": self.sampler.over(local_steps), "neighbours": self.neighbours}

    @property
    def sensitivity(self) -> float:
        """How far one record can move the clipped sum, in units of the clip C."""
        return SENSITIVITY[self.neighbours]


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


#: What each number of a promise may be.
_RANGES: dict[str, Any] = {
    "epsilon": {"above": 0},
    "delta": {"above": 0, "below": 1},
    "sampling_rate": {"above": 0, "at_most": 1},
    "size": {"above": 0},
}


def promise_columns(**given: ArrayLike) -> tuple[FloatArray, ...]:
    """Numbers of promises by name, each in its range, in their common shape.

    Example:
        >>> promise_columns(epsilon=[1.0, 2.0], steps=3)
        (array([1., 2.]), array([3., 3.]))
    """
    return broadcast_fields(
        **{
            name: whole_steps(values)
            if name == "steps"
            else float_array(name, values, **_RANGES[name])
            for name, values in given.items()
        }
    )


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
