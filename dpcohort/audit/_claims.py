# SPDX-License-Identifier: Apache-2.0
"""What is tested: a private training seen from outside, what it claims, and the outcome of a test.

The tests choose the gradients. Every client of the training under test holds records whose raw
gradients are the rows of a given matrix, whatever the weights; out come the updates of every draw.
An engine offers that by training a linear model, whose gradients are its inputs; any other
implementation can be wrapped the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import numpy as np

from dpcohort._validate import FloatArray, IntArray, choice, number, whole_number
from dpcohort.accounting._sampler import SENSITIVITY, Sampler
from dpcohort.accounting._samplers import sampler_of
from dpcohort.accounting._unit import PersonRows
from dpcohort.limits import MOST_PERSON_ROWS

#: What the rows of the first person are beside equal parts of its gradient.
Unequal = Literal["", "which cancel", "one of them not finite"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a training says it does in each local step.

    Attributes:
        sampler: how batches are drawn; its name may be given.
        clip: norm C to which each record's gradient is clipped.
        noise_multiplier: z; the noise on the mean has standard deviation z C / B.
        private: whether it claims to be fit for deployment: noise that nobody can predict, of full
            tail, and nothing in the last bits. A simulation does not.
        rows: above 1, what is protected and drawn is a person with that many rows, whose gradients
            are added up before they are clipped; at 1, a record.
        person_rows: whether they are added (``sum``) or averaged (``mean``).
        unequal: how the rows of the first person differ: one is 1000 C long and ``which cancel`` it
            are all others; or one is not a number.

    Example:
        >>> Claim(sampler="poisson").sensitivity
        1.0
    """

    sampler: Sampler
    clip: float = 1.0
    noise_multiplier: float = 1.0
    private: bool = False
    rows: int = 1
    person_rows: PersonRows = "sum"
    unequal: Unequal = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", sampler_of(self.sampler))
        number("clip", self.clip, above=0)
        number("noise_multiplier", self.noise_multiplier, at_least=0)
        least = 2 if self.unequal else 1
        whole_number("rows", self.rows, at_least=least, at_most=MOST_PERSON_ROWS)
        choice("person_rows", self.person_rows, get_args(PersonRows))
        choice("unequal", self.unequal, get_args(Unequal))

    @property
    def sensitivity(self) -> float:
        """How far one unit can move the clipped sum, in units of C, under its neighbours."""
        return SENSITIVITY[self.sampler.natural_neighbours]

    @property
    def absent(self) -> float:
        """Factor on a unit's gradient that stands for its absence: turned around, or nothing."""
        return 1.0 - self.sensitivity

    @property
    def unit(self) -> str:
        """What the claim is about, in a sentence."""
        return "one record" if self.rows == 1 else f"one person with {self.rows} rows"


class PrivateTraining(Protocol):
    """A training whose raw gradients the tests choose.

    One that can train hostile models as well, with weights or inputs on which arithmetic breaks
    down, offers them as ``hostile``, a mapping from what is hostile to a training of that kind.
    """

    def __call__(
        self,
        gradients: FloatArray,
        *,
        claim: Claim,
        batch_size: int,
        seed: int,
        cohorts: IntArray,
        local_steps: int = 1,
    ) -> FloatArray:
        """Updates [rounds, draws, D] of every draw, in units of the step size.

        Args:
            gradients: [units, D] raw gradients of the records every client holds; of persons, what
                their rows' make up, which :func:`rows_of_persons` gives.
            claim: sampler, clip and noise to use.
            batch_size: the public denominator B; the sampling rate is B / units.
            seed: the seed of all batches and noise; a deployment has none and ignores it.
            cohorts: [rounds, draws] clients; one that comes twice in a round has two draws.
            local_steps: noisy steps each draw takes; its update is their sum.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one test.

    Attributes:
        test: its name.
        passed: whether the claim holds as far as the test can see.
        detail: what was seen, in words and numbers.
        false_alarm_rate: probability that a correct training fails the test.
        measured: the numbers behind the words, for programs.
    """

    test: str
    passed: bool
    detail: str
    false_alarm_rate: float
    measured: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{'ok    ' if self.passed else 'FAILED'} {self.test}: {self.detail}"


def rows_of_persons(gradients: FloatArray, claim: Claim) -> tuple[FloatArray, IntArray]:
    """Rows whose gradients make up those of each person, and whose each of them is.

    Every fourth person has a single row; that of others is the same in all their rows, so that
    none of them is long enough to be clipped where their sum is just too long; but for what the
    claim says of the first person.

    Example:
        >>> rows, persons = rows_of_persons(np.ones((2, 3)), Claim(sampler="poisson", rows=2))
        >>> rows.tolist(), persons.tolist()
        ([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]], [0, 0, 1, 1])
    """
    counts = np.where(np.arange(len(gradients)) % 4 == 3, 1, claim.rows)
    persons = np.repeat(np.arange(len(gradients)), counts)
    rows = gradients[persons]
    if claim.person_rows == "sum":
        rows = rows / counts[persons, None]
    if claim.unequal == "which cancel":
        rows[0, 0] += 1e3 * claim.clip
        rows[1 : claim.rows, 0] -= 1e3 * claim.clip / (claim.rows - 1)
    elif claim.unequal:
        rows[0] = np.nan
    return rows, persons


def updates_of(
    training: PrivateTraining,
    gradients: FloatArray,
    claim: Claim,
    *,
    batch_size: int,
    seed: int,
    rounds: int = 1,
) -> FloatArray:
    """Updates [rounds, D] of one client that is drawn once a round."""
    cohorts = np.zeros((rounds, 1), dtype=np.int64)
    return training(gradients, claim=claim, batch_size=batch_size, seed=seed, cohorts=cohorts)[:, 0]


def repeats(training: PrivateTraining, claim: Claim, seed: int = 0) -> bool:
    """Whether a training gives the same bits again under one seed, as a simulation does.

    Example:
        >>> from dpcohort.audit import EngineUnderTest
        >>> repeats(EngineUnderTest("reference"), Claim(sampler="fixed"))
        True
    """
    once, again = (
        updates_of(training, np.zeros((2, 16)), claim, batch_size=2, seed=seed) for _ in range(2)
    )
    return bool(np.array_equal(once, again, equal_nan=True))
