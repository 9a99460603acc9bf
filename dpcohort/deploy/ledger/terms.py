# SPDX-License-Identifier: Apache-2.0
"""What a client's owner accepts for one run, and the check of every request against it.

Terms are closed: all draws they allow, each at the least noise they allow, must fit the (ε, δ)
they state. Every step of the run is then dominated by one and the same mechanism, so counting
draws is a valid stopping rule, whatever a server makes of earlier answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpcohort._validate import nearest, number, whole_number
from dpcohort.accounting.contract import Neighbours, Sampler, resolve_neighbours
from dpcohort.accounting.events import Event, History
from dpcohort.errors import BudgetExceededError, FileFormatError, InputError
from dpcohort.limits import LARGEST_TERMS, read_bounded
from dpcohort.text_files import parse_toml

__all__ = ["RunTerms"]

_MOST = 10**9


@dataclass(frozen=True, kw_only=True)
class RunTerms:
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

    epsilon: float
    delta: float
    clip: float
    sampling_rate: float
    local_steps: int
    rounds: int
    draws: int
    least_noise_multiplier: float
    sampler: Sampler = "poisson"
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        checked = {
            "epsilon": number("epsilon", self.epsilon, above=0),
            "delta": number("delta", self.delta, above=0, below=1),
            "clip": number("clip", self.clip, above=0),
            "sampling_rate": number("sampling_rate", self.sampling_rate, above=0, at_most=1),
            "least_noise_multiplier": number(
                "least_noise_multiplier", self.least_noise_multiplier, above=0
            ),
            "neighbours": resolve_neighbours(self.sampler, self.neighbours),
        }
        for field in ("local_steps", "rounds", "draws"):
            checked[field] = whole_number(field, getattr(self, field), at_least=1, at_most=_MOST)
        for field, value in checked.items():
            object.__setattr__(self, field, value)
        whole_number("draws x local_steps", self.draws * self.local_steps, at_most=_MOST)

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
        next_step = "The client's owner accepted these terms; a server cannot change them."
        for field, asked, accepted in (
            ("sampling_rate", event.sampling_rate, self.sampling_rate),
            ("steps", event.steps, self.local_steps),
            ("sampler", event.sampler, self.sampler),
            ("neighbours", event.neighbours, self.neighbours),
        ):
            if asked != accepted:
                raise InputError(
                    field, given=asked, allowed=f"{accepted!r} as accepted", next_step=next_step
                )
        if event.noise_multiplier < self.least_noise_multiplier:
            allowed = f"at least {self.least_noise_multiplier:g} as accepted"
            raise InputError(
                "noise_multiplier",
                given=event.noise_multiplier,
                allowed=allowed,
                next_step=next_step,
            )
        if number("clip", clip, above=0) > self.clip:
            allowed = f"at most {self.clip:g} as accepted"
            raise InputError("clip", given=clip, allowed=allowed, next_step=next_step)
        if round >= self.rounds:
            allowed = f"below the {self.rounds} rounds accepted"
            raise InputError("round", given=round, allowed=allowed, next_step=next_step)

    def to_dict(self) -> dict[str, Any]:
        """The terms as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunTerms:
        """What :meth:`to_dict` gave; unknown and missing keys are refused."""
        fields = list(cls.__dataclass_fields__)
        for key in values:
            if key not in fields:
                hint = nearest(str(key), fields)
                raise InputError(
                    "key",
                    given=key,
                    allowed="one of " + ", ".join(fields),
                    next_step=f"Did you mean {hint!r}?" if hint else None,
                )
        for key in fields[:-2]:
            if key not in values:
                raise InputError.because(f"the key {key!r} is missing.")
        return cls(**values)

    @classmethod
    def from_toml(cls, path: str | Path) -> RunTerms:
        """Terms from a TOML file with one line for each of the attributes above.

        Raises:
            InputError: the file is not there, not TOML, or not terms.
        """
        try:
            values = parse_toml(read_bounded(path, LARGEST_TERMS).decode("utf-8"))
        except FileFormatError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FileFormatError(path, f"the terms cannot be read: {reason}.") from None
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise FileFormatError(path, str(error)) from None
