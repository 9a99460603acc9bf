# SPDX-License-Identifier: Apache-2.0
"""What a client's owner says: the lifetime cap of its data, and the terms of each accepted run.

Terms are closed: all draws they allow, each at the least noise they allow, must fit the (ε, δ)
they state. Every step of the run is then dominated by one and the same mechanism, so counting
draws is a valid stopping rule, whatever a server makes of earlier answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo, model_validator

from dpcohort._validate import number, whole_number
from dpcohort.accounting.contract import Neighbours, Sampler, resolve_neighbours
from dpcohort.accounting.events import Event, History
from dpcohort.deploy.formats import Format, bounded, checked_name, whole
from dpcohort.errors import BudgetExceededError, InputError

AcrossRuns = Literal["composed", "summed"]
_MOST = 10**9
Positive = Annotated[float, bounded(above=0)]
Delta = Annotated[float, bounded(above=0, below=1)]
Natural = Annotated[int, whole(at_least=1, at_most=_MOST)]


def hex_digits(digits: int, allowed: str) -> PlainValidator:
    """So many hexadecimal digits in small letters, or None; ``allowed`` says it in words."""
    pattern = f"[0-9a-f]{{{digits}}}"

    def check(value: Any, info: ValidationInfo) -> Any:
        if value is None or (isinstance(value, str) and re.fullmatch(pattern, value)):
            return value
        raise InputError(str(info.field_name), given=value, allowed=allowed)

    return PlainValidator(check)


def _resolved(value: str | None, info: ValidationInfo) -> Neighbours | None:
    sampler = info.data.get("sampler")  # not there if it was refused itself
    return None if sampler is None else resolve_neighbours(sampler, value)


#: The neighbouring relation of a run: the one given, or the natural one of its ``sampler``.
Relation = Annotated[Neighbours | None, AfterValidator(_resolved), Field(validate_default=True)]


@dataclass(frozen=True, kw_only=True)
class DrawKey:
    """Which draw: a draw has at most one output, ever, and this is how it is called.

    Attributes:
        dataset: the registered data set.
        run: the accepted run.
        round: from 0.
        draw: position in the round's cohort, or any other number unique in the round, from 0.

    Example:
        >>> print(DrawKey(dataset="ward-7", run="spring", round=3, draw=0))
        ward-7 / spring / round 3 / draw 0
    """

    dataset: str
    run: str
    round: int
    draw: int

    def __post_init__(self) -> None:
        checked_name("dataset", self.dataset)
        checked_name("run", self.run)
        for field in ("round", "draw"):
            value = whole_number(field, getattr(self, field), at_least=0, at_most=_MOST)
            object.__setattr__(self, field, value)

    def __str__(self) -> str:
        return f"{self.dataset} / {self.run} / round {self.round} / draw {self.draw}"


class LifetimeCap(Format):
    """What one data set may spend over all runs; fixed when the data set is registered.

    Attributes:
        epsilon: ε for the lifetime of the data.
        delta: δ for the lifetime of the data.
        neighbours: the relation the cap speaks of; events of another kind are counted under
            replace-one, which covers both.
        across_runs: ``composed`` counts every draw made so far by one composition of them all. It
            holds when neither the terms of a run, nor how draws are shared out between runs,
            depend on what earlier draws gave out (arXiv 2602.06756). ``summed`` counts each begun
            run with the whole (ε, δ) of its terms and adds them up (a zero-out run under a
            replace-one cap with what its draws come to under replace-one); it holds also when a
            server chooses the next run after looking at the last.
        fingerprint: SHA-256 of the data, if given: the same data under a second name are refused.

    Example:
        >>> LifetimeCap(epsilon=4.0, delta=1e-5).across_runs
        'composed'
    """

    epsilon: Positive
    delta: Delta
    neighbours: Neighbours = "zero-out"
    across_runs: AcrossRuns = "composed"
    fingerprint: Annotated[
        str | None, hex_digits(64, "64 hexadecimal digits in small letters (SHA-256), or None")
    ] = None


class RunTerms(Format):
    """The terms of one run, as the client's owner accepts them.

    Attributes:
        epsilon: ε that all draws of the run together may spend.
        delta: δ of the run.
        clip: largest clip C; noise is in units of it.
        sampling_rate: r of every step.
        local_steps: noisy steps of one draw.
        rounds: rounds are numbered 0 to ``rounds`` - 1.
        draws: most draws of this client in the whole run.
        least_noise_multiplier: smallest z; every draw is charged at it, also one with more noise.
        sampler: ``poisson`` or ``fixed``.
        neighbours: ``zero-out`` or ``replace-one``.

    Example:
        >>> terms = RunTerms(epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=1,
        ...                  rounds=60, draws=60, least_noise_multiplier=2.0)
        >>> round(terms.certified_epsilon(), 2)
        1.81
    """

    epsilon: Positive
    delta: Delta
    clip: Positive
    sampling_rate: Annotated[float, bounded(above=0, at_most=1)]
    local_steps: Natural
    rounds: Natural
    draws: Natural
    least_noise_multiplier: Positive
    sampler: Sampler = "poisson"
    neighbours: Relation = None

    @model_validator(mode="after")
    def _check_steps(self) -> RunTerms:
        whole_number("draws x local_steps", self.draws * self.local_steps, at_most=_MOST)
        return self

    def charge(self, draws: int) -> Event:
        """What this many draws are charged: their steps at the least noise of the terms."""
        return Event(
            noise_multiplier=self.least_noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=draws * self.local_steps,
            sampler=self.sampler,
            neighbours=self.neighbours,
        )

    def certified_epsilon(self, draws: int | None = None) -> float:
        """An upper bound on the ε of these draws (all of the run, if not given) at its δ."""
        return History((self.charge(self.draws if draws is None else draws),)).epsilon(self.delta)

    def check_closed(self) -> None:
        """Refuse terms that allow more than the (ε, δ) they state.

        Raises:
            BudgetExceededError: all draws at the least noise would spend more.
        """
        if History((self.charge(self.draws),)).delta(self.epsilon) > self.delta:
            raise BudgetExceededError(
                f"These terms allow {self.draws} draws of {self.local_steps} steps at noise "
                f"multiplier {self.least_noise_multiplier:g} and rate {self.sampling_rate:g}: "
                f"epsilon {self.certified_epsilon():.6g} at delta {self.delta:g}, above the "
                f"{self.epsilon:g} they state. Ask for more noise or fewer draws."
            )

    def check_request(self, event: Event, *, clip: float, round: int) -> None:
        """Refuse a draw that is not within the terms.

        Raises:
            InputError: naming what was asked and what was accepted.
        """

        def refused(field: str, asked: object, allowed: str) -> InputError:
            next_step = "The client's owner accepted these terms; a server cannot change them."
            return InputError(field, given=asked, allowed=allowed, next_step=next_step)

        for field, asked, accepted in (
            ("sampling_rate", event.sampling_rate, self.sampling_rate),
            ("steps", event.steps, self.local_steps),
            ("sampler", event.sampler, self.sampler),
            ("neighbours", event.neighbours, self.neighbours),
        ):
            if asked != accepted:
                raise refused(field, asked, f"{accepted!r} as accepted")
        if event.noise_multiplier < self.least_noise_multiplier:
            allowed = f"at least {self.least_noise_multiplier:g} as accepted"
            raise refused("noise_multiplier", event.noise_multiplier, allowed)
        if number("clip", clip, above=0) > self.clip:
            raise refused("clip", clip, f"at most {self.clip:g} as accepted")
        if round >= self.rounds:
            raise refused("round", round, f"below the {self.rounds} rounds accepted")
