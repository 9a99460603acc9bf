# SPDX-License-Identifier: Apache-2.0
"""Projected noisy SGD inside each client: the server sees only the last model of a pass.

The federated use of last-iterate accounting (``last_iterate``). A client in the
cohort makes one pass over its records, in random order, in disjoint batches of B_k; each step adds
noise and is projected on the ball of radius R around the global model it received; it uploads the
last model. Over rounds the uploads compose: what the server sees in between is not hidden, and no
credit is taken for it. ``formula`` uses the published contraction, ``honest`` the sharper one; both
are derived in that module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number
from dpcohort.accounting import calibrate_noise
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.last_iterate import LastIterate
from dpcohort.lab.schemes.receipt import Outcome, SchemeReceipt, scheme_receipts

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["ProjectedSGD", "least_noise"]

_HALVINGS = 9
_SLACK = 1e-5  # 32-bit rounding of a projection stays inside the ball
_FURTHEST = 0.2  # the noise is never looked for below this share of what full release needs


@lru_cache(maxsize=4096)
def least_noise(
    *,
    epsilon: float,
    delta: float,
    passes: int,
    steps: int,
    batch_size: int,
    clip: float,
    step_size: float,
    radius: float,
    sharp: bool = True,
) -> float:
    """The smallest noise multiplier, to 1 %, whose last iterates certify.

    Starts at the noise that even a release of every step would allow, and goes down as long as the
    last-iterate bound certifies.

    Example:
        >>> setting = dict(epsilon=2.0, delta=1e-5, passes=5, steps=8, batch_size=8, clip=1.0,
        ...                step_size=0.1, radius=0.2)
        >>> full = calibrate_noise(epsilon=2.0, delta=1e-5, sampling_rate=1.0, steps=5,
        ...                        neighbours="replace-one")
        >>> least_noise(**setting) < full
        True
    """
    full = float(
        calibrate_noise(
            epsilon=epsilon,
            delta=delta,
            sampling_rate=1.0,
            steps=passes,
            neighbours="replace-one",
        )
    )

    def certifies(noise: float) -> bool:
        accountant = LastIterate(
            noise_multiplier=noise,
            batch_size=batch_size,
            steps=steps,
            clip=clip,
            step_size=step_size,
            radius=radius,
        )
        return accountant.epsilon(delta, passes=passes, sharp=sharp) <= epsilon

    low, high = math.log(_FURTHEST * full), math.log(full)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if certifies(math.exp(middle)) else (middle, high)
    return math.exp(high)


@dataclass(frozen=True, kw_only=True)
class ProjectedSGD:
    """One hidden pass of projected noisy SGD a participation.

    Attributes:
        mode: ``honest`` (sharp contraction) or ``formula`` (the published one).
        radius: R, how far a client's model may go from the global one.

    Example:
        >>> ProjectedSGD().card.sees
        "each client's last model of a pass"
    """

    mode: Mode = "honest"
    radius: float = 1.0

    def __post_init__(self) -> None:
        number("radius", self.radius, above=0)

    @property
    def card(self) -> Card:
        """The scheme in words."""
        return Card(
            name="last-iterate",
            title="one hidden pass of projected noisy SGD, last model released",
            unit="record",
            neighbours="replace-one",
            sees="each client's last model of a pass",
            accountant="contraction of the hockey-stick divergence, PLD over passes",
            needs="projection; intermediate models that never leave the client",
            reference="Asoodeh, Diaz and Calmon, ISIT 2020, arXiv 2001.06546",
            source="derived here",
            formula="contraction by theta_gamma(D/s) a step, as published",
        )

    def accountant(
        self, noise: float, *, size: int, batch_size: int, clip: float, step_size: float
    ) -> LastIterate:
        """The accountant of one client's passes."""
        return LastIterate(
            noise_multiplier=noise,
            batch_size=batch_size,
            steps=-(-size // batch_size),
            clip=clip,
            step_size=step_size,
            radius=self.radius,
        )

    def noise_multipliers(self, federation: Federation, passes: IntArray) -> FloatArray:
        """z_k of each client; 0 for public clients and those without a pass."""
        people = federation.population
        found = np.zeros(len(people))
        for k in np.flatnonzero(~people.public & (passes > 0)).tolist():
            batch = int(federation.batch_sizes[k])
            found[k] = least_noise(
                epsilon=float(people.epsilon[k]),
                delta=float(people.delta[k]),
                passes=int(passes[k]),
                steps=-(-int(people.sizes[k]) // batch),
                batch_size=batch,
                clip=federation.training.clip,
                step_size=self._largest_step(federation),
                radius=self.radius,
                sharp=self.mode == "honest",
            )
        return found

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        from dpcohort.lab.schemes.rounds import mean_of_cohort, participations, train_rounds

        cohorts = federation.cohorts()
        noise = self.noise_multipliers(federation, participations(cohorts, len(federation)))
        spent = np.zeros(len(federation), dtype=np.int64)

        def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
            spent[k] += 1
            return self._pass(federation, t, k, weights, float(noise[k]))

        return train_rounds(
            federation,
            mean_of_cohort(federation, cohorts, update),
            card=self.card,
            mode=self.mode,
            receipts=lambda: self._receipts(federation, noise, spent),
        )

    def _pass(
        self, federation: Federation, t: int, k: int, weights: Tensor, noise: float
    ) -> tuple[Tensor, float]:
        """One pass; the update, and about the noise in it (projection only takes some away)."""
        size, batch = int(federation.sizes[k]), int(federation.batch_sizes[k])
        clip, alpha = federation.training.clip, self._largest_step(federation)
        words = federation.streams.words("batch", size, round=t, client=k)
        order = np.argsort(words, kind="stable").astype(np.int64)
        local, std = weights.clone(), noise * clip / batch
        steps = -(-size // batch)
        for step in range(steps):
            positions = np.sort(order[step * batch : (step + 1) * batch])
            raw = federation.clipped_sum(local, k, positions, clip) / batch
            local = local - alpha * (raw + std * federation.noise(t, k, step=step))
            away = local - weights
            shrink = self.radius * (1 - _SLACK) / max(float(away.double().norm()), 1e-300)
            local = weights + away * min(1.0, shrink)
        spread = min(alpha * std * math.sqrt(steps), self.radius / math.sqrt(federation.dimension))
        return weights - local, spread

    def _largest_step(self, federation: Federation) -> float:
        """One step size for all passes: the accountant knows one."""
        return federation.step_size(0)

    def _receipts(
        self, federation: Federation, noise: FloatArray, spent: IntArray
    ) -> list[SchemeReceipt]:
        people = federation.population
        certified = np.full(len(people), np.nan)
        claimed = np.full(len(people), np.nan)
        for k in np.flatnonzero(~people.public).tolist():
            if spent[k] == 0:
                certified[k] = 0.0
                continue
            accountant = self.accountant(
                float(noise[k]),
                size=int(people.sizes[k]),
                batch_size=int(federation.batch_sizes[k]),
                clip=federation.training.clip,
                step_size=self._largest_step(federation),
            )
            delta, passes = float(people.delta[k]), int(spent[k])
            certified[k] = accountant.epsilon(delta, passes=passes)
            if self.mode == "formula":
                claimed[k] = accountant.epsilon(delta, passes=passes, sharp=False)
        return scheme_receipts(
            people,
            self.card,
            self.mode,
            claimed=claimed,
            certified=certified,
            noise=noise,
            uses=spent,
            assumptions=[
                f"every local step is projected on a ball of radius {self.radius:g}",
                "only the last model of a pass leaves the client; the server sees one each round, "
                "and rounds compose in full",
                "a record is in one batch of a pass, and the order does not depend on the data",
            ],
        )
