# SPDX-License-Identifier: Apache-2.0
"""Privacy of the last iterate of projected noisy SGD, where intermediate models stay hidden.

After S. Asoodeh, M. Diaz and F. Calmon, "Privacy amplification of iterative algorithms via
contraction coefficients", ISIT 2020, arXiv 2001.06546, and S. Asoodeh et al., "Differentially
private federated learning: an information-theoretic perspective", 2021 (abstracts only; everything
used is derived here). One pass takes L steps

    w <- projection of (w - alpha (g(w) + noise)) on a ball of radius R,

g the clipped sum of a batch over B, |g| <= C, noise N(0, (z C / B)^2): so s = alpha z C / B on the
model. The batches of a pass are disjoint, and only the last w leaves the client.

**Contraction.** For laws P, Q and gamma >= 1 let E_gamma(P|Q) = mass of (P - gamma Q)_+ = a. Its
negative part has mass b = a + gamma - 1. A kernel K sends P - gamma Q to mu_+ K - mu_- K, and since
(.)_+ is convex,

    E_gamma(PK|QK) <= sup over x, y of the mass of (a K(x) - b K(y))_+
                    = a sup E_{b/a}(K(x)|K(y)),      b/a = 1 + (gamma - 1)/a >= gamma.

K(x), K(y) are Gaussians around points at most D = 2R + 2 alpha C apart, then projected, which
cannot raise E_gamma. With theta_gamma(r) = delta of a Gaussian mechanism with mu = r at ln(gamma),

    a <- a theta_{1 + (gamma - 1)/a}(D/s).                                    (sharp)

theta grows as its index falls and b/a >= gamma, so a <- a theta_gamma(D/s) holds too: the published
contraction (``sharp=False``). The sharp map is increasing in a, so upper bounds stay upper bounds.

**A pass.** Replacing a record of batch i moves step i by at most 2 alpha C / B, so after it
a <= theta_gamma(2/z); L - i contractions follow. With batches in random order the bound is the mean
over i, because E_gamma is jointly convex and the order does not depend on the data (it need not be
secret). Where the last batch is smaller than the others, a record is there less often than once in
L, so the plain mean is still an upper bound. Passes compose by their profile
(:mod:`dpcohort_lab.schemes.profile`).

Neither convexity nor smoothness is used; a convex smooth loss without clipping would have D = 2R.

**When it does not apply.** Without projection D is infinite. If the server sees every step, as it
does in DP-FedAvg with one step a round, every step is a last iterate and nothing is hidden. If a
record is in several batches of a pass, the two worlds move apart more than once. The accountant
then refuses and says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcohort.accounting import calibrate_noise, certify_epsilon, gaussian_delta
from dpcohort.errors import InputError
from dpcohort_lab.checks import FloatArray, number, whole_number
from dpcohort_lab.schemes.profile import composed_epsilon_of
from dpcohort_lab.schemes.scheme import (
    Account,
    Mode,
    RoundUpdate,
    budget_of,
    mean_of_cohort,
    participations,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort_lab.schemes.simulation import Simulation

_POINTS = 200
_SPREADS = 9.0  # the privacy loss of a Gaussian this many deviations out is left to delta
_LARGEST_LOG = 690.0


def contracted(
    delta: FloatArray, *, epsilon: FloatArray, distance: float, sharp: bool = True
) -> FloatArray:
    """E_gamma after one more noisy step whose centres are at most ``distance`` deviations apart.

    Args:
        delta: E_gamma before, at most 1.
        epsilon: ln(gamma), at least 0.
        distance: D/s.
        sharp: the sharper of the two bounds.

    Example:
        >>> before = np.array([0.1])
        >>> plain = contracted(before, epsilon=np.array([0.5]), distance=1.0, sharp=False)
        >>> sharp = contracted(before, epsilon=np.array([0.5]), distance=1.0)
        >>> bool(0 < sharp[0] < plain[0] < 0.1)
        True
    """
    if not sharp:
        return np.asarray(delta * gaussian_delta(epsilon=epsilon, mu=distance))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # ln(1 + (gamma - 1)/a)
        index = np.log1p(np.expm1(epsilon) / delta)
    index = np.where(delta > 0, np.minimum(index, _LARGEST_LOG), epsilon)
    return np.asarray(delta * gaussian_delta(epsilon=index, mu=distance))


@dataclass(frozen=True, kw_only=True)
class LastIterate:
    """Accountant of passes of projected noisy SGD that release their last model only.

    Attributes:
        noise_multiplier: z, noise on the clipped sum in units of the clip.
        batch_size: B, the public denominator and the largest batch.
        steps: L, batches of a pass.
        clip: C.
        step_size: alpha.
        radius: R of the ball that every step is projected on; None for no projection.
        hides_iterates: only the last model of a pass is released.
        each_record_once: batches of a pass are disjoint.

    Example:
        >>> setting = dict(noise_multiplier=8.0, batch_size=8, steps=10, clip=1.0, step_size=0.1)
        >>> hidden = LastIterate(radius=0.2, **setting)
        >>> hidden.epsilon(1e-5) < hidden.released_epsilon(1e-5)
        True
        >>> LastIterate(radius=None, **setting).objections()
        ('the models are not projected on a bounded set',)
    """

    noise_multiplier: float
    batch_size: int
    steps: int
    clip: float
    step_size: float
    radius: float | None
    hides_iterates: bool = True
    each_record_once: bool = True

    def __post_init__(self) -> None:
        for field in ("noise_multiplier", "clip", "step_size"):
            number(field, getattr(self, field), above=0)
        whole_number("batch_size", self.batch_size, at_least=1)
        whole_number("steps", self.steps, at_least=1)
        if self.radius is not None:
            number("radius", self.radius, above=0)

    def objections(self) -> tuple[str, ...]:
        """Which assumptions do not hold; empty if the bound applies."""
        found = []
        if self.radius is None:
            found.append("the models are not projected on a bounded set")
        if not self.hides_iterates:
            found.append("intermediate models are released, so each of them is a last iterate")
        if not self.each_record_once:
            found.append("a record is used in several steps of a pass")
        return tuple(found)

    @property
    def distance(self) -> float:
        """D/s, how far apart the centres of two steps can be, in units of the noise."""
        if self.radius is None:
            return math.inf
        noise = self.step_size * self.noise_multiplier * self.clip / self.batch_size
        return 2 * (self.radius + self.step_size * self.clip) / noise

    def delta(self, epsilon: FloatArray, *, sharp: bool = True) -> FloatArray:
        """The privacy profile of one pass with batches in random order.

        Raises:
            InputError: an assumption does not hold.
        """
        self._refuse()
        eps = np.asarray(epsilon, dtype=np.float64)
        now = np.asarray(gaussian_delta(epsilon=eps, mu=2 / self.noise_multiplier))
        total = now.copy()  # the record in the last batch: no contraction follows
        for _ in range(self.steps - 1):
            now = contracted(now, epsilon=eps, distance=self.distance, sharp=sharp)
            total += now
        return np.asarray(total / self.steps)

    def epsilon(self, delta: float, *, passes: int = 1, sharp: bool = True) -> float:
        """Certified epsilon of the released last models of so many passes.

        Raises:
            InputError: an assumption does not hold.
        """
        mu = 2 / self.noise_multiplier
        found = composed_epsilon_of(
            lambda eps: self.delta(eps, sharp=sharp),
            largest=mu * (mu / 2 + _SPREADS),
            uses=passes,
            delta=delta,
            points=_POINTS,
        )
        # A grid can only overstate; what is released in full is an upper bound too.
        return min(found, self.released_epsilon(delta, passes=passes))

    def released_epsilon(self, delta: float, *, passes: int = 1) -> float:
        """Certified epsilon if every step were released: a record is in one batch of a pass."""
        if not self.each_record_once:
            passes = passes * self.steps
        spent = certify_epsilon(
            method="pld",
            delta=delta,
            noise_multiplier=self.noise_multiplier,
            sampling_rate=1.0,
            steps=float(passes),
            neighbours="replace-one",
        )
        return float(spent)

    def _refuse(self) -> None:
        reasons = self.objections()
        if reasons:
            raise InputError.because(
                "last-iterate accounting does not apply: "
                + "; ".join(reasons)
                + ". Count every released step instead (released_epsilon)."
            )


_HALVINGS = 9
_SLACK = 1e-5  # 32-bit rounding of a projection stays inside the ball
_FURTHEST = 0.2  # the noise is never looked for below this share of what full release needs


@lru_cache(maxsize=4096)
def least_noise(
    passes: LastIterate, *, epsilon: float, delta: float, count: int, sharp: bool = True
) -> float:
    """The smallest noise multiplier, to 1 %, whose last iterates certify.

    Starts at the noise that even a release of every step would allow, and goes down as long as the
    last-iterate bound certifies.

    Args:
        passes: what is released; its own noise is not looked at.
        epsilon: promised.
        delta: promised.
        count: how many passes are released.
        sharp: the sharper of the two contractions.

    Example:
        >>> passes = LastIterate(noise_multiplier=1.0, steps=8, batch_size=8, clip=1.0,
        ...                      step_size=0.1, radius=0.2)
        >>> full = calibrate_noise(epsilon=2.0, delta=1e-5, sampling_rate=1.0, steps=5,
        ...                        neighbours="replace-one")
        >>> least_noise(passes, epsilon=2.0, delta=1e-5, count=5) < full
        True
    """
    full = float(
        calibrate_noise(
            epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=count, neighbours="replace-one"
        )
    )
    low, high = math.log(_FURTHEST * full), math.log(full)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        quieter = replace(passes, noise_multiplier=math.exp(middle))
        certifies = quieter.epsilon(delta, passes=count, sharp=sharp) <= epsilon
        low, high = (low, middle) if certifies else (middle, high)
    return math.exp(high)


def projected_sgd(
    simulation: Simulation, mode: Mode, *, radius: float = 1.0
) -> tuple[RoundUpdate, Account]:
    """Projected noisy SGD inside each client: the server sees only the last model of a pass.

    The federated use of last-iterate accounting. A client in the cohort makes one pass over its
    records, in random order, in disjoint batches of B_k; each step adds noise and is projected on
    the ball of radius R around the global model it received; it uploads the last model. Over rounds
    the uploads compose: what the server sees in between is not hidden, and no credit is taken for
    it.

    Args:
        simulation: clients, data, model.
        mode: ``honest`` (sharp contraction) or ``formula`` (the published one).
        radius: R, how far a client's model may go from the global one.
    """
    people, cohorts = simulation.population, simulation.cohorts()
    uses = np.zeros(len(people), dtype=np.int64)
    passes = [
        # The accountant knows one step size, so all passes have the first round's.
        LastIterate(
            noise_multiplier=1.0,
            batch_size=int(batch),
            steps=-(-int(size) // int(batch)),
            clip=simulation.training.clip,
            step_size=simulation.step_size(0),
            radius=radius,
        )
        for size, batch in zip(simulation.sizes, simulation.batch_sizes, strict=True)
    ]
    planned = participations(cohorts, len(people))
    noise = np.zeros(len(people))  # 0 for public clients and those without a pass
    for k in np.flatnonzero(~people.public & (planned > 0)).tolist():
        wanted: Any = budget_of(people, k) | {"count": int(planned[k]), "sharp": mode == "honest"}
        noise[k] = least_noise(passes[k], **wanted)

    def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
        return one_pass(simulation, t, k, weights, float(noise[k]), radius)

    def account() -> dict[str, Any]:
        return {
            "claimed": None if mode == "honest" else spent(sharp=False),
            "certified": spent(sharp=True),
            "noise": noise,
            "uses": uses,
            "assumptions": [
                f"every local step is projected on a ball of radius {radius:g}",
                "only the last model of a pass leaves the client; the server sees one each "
                "round, and rounds compose in full",
                "a record is in one batch of a pass, and the order does not depend on the data",
            ],
        }

    def spent(*, sharp: bool) -> FloatArray:
        # Who made no pass spent nothing, and the published formula claims nothing of it.
        found = np.full(len(people), 0.0 if sharp else np.nan)
        for k in np.flatnonzero(~people.public & (uses > 0)).tolist():
            made = replace(passes[k], noise_multiplier=float(noise[k]))
            found[k] = made.epsilon(float(people.delta[k]), passes=int(uses[k]), sharp=sharp)
        return found

    return mean_of_cohort(cohorts, update, uses), account


def one_pass(
    simulation: Simulation, t: int, k: int, weights: Tensor, noise: float, radius: float
) -> tuple[Tensor, float]:
    """The update, and about the noise in it (projection only takes some away)."""
    size, batch = int(simulation.sizes[k]), int(simulation.batch_sizes[k])
    clip, alpha = simulation.training.clip, simulation.step_size(0)
    words = simulation.streams.words("batch", size, round=t, client=k)
    order = np.argsort(words, kind="stable").astype(np.int64)
    local, std = weights.clone(), noise * clip / batch
    steps = -(-size // batch)
    for step in range(steps):
        positions = np.sort(order[step * batch : (step + 1) * batch])
        raw = simulation.clipped_sum(local, k, positions, clip) / batch
        local = local - alpha * (raw + std * simulation.noise(t, k, step=step))
        away = local - weights
        shrink = radius * (1 - _SLACK) / max(float(away.double().norm()), 1e-300)
        local = weights + away * min(1.0, shrink)
    spread = min(alpha * std * math.sqrt(steps), radius / math.sqrt(simulation.dimension))
    return weights - local, spread
