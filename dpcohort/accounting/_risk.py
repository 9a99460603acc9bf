# SPDX-License-Identifier: Apache-2.0
"""What an attacker can gain at most: hits against false alarms, from the certified composition.

An attacker knows everything but one thing: whether a certain record was in. Whatever test they use,
it raises false alarms (says "was in" though it was not) at some rate α and hits (says "was in" when
it was) at some rate. If the outputs are (ε, δ(ε))-DP for some ε ≥ 0, no test hits more often than

    δ(ε) + e^ε α      and      1 - e^{-ε} (1 - δ(ε) - α),

so the smallest of these over any set of ε bounds every test (Dong, Roth and Su 2019; Kulynych et
al. 2024). The δ(ε) are upper bounds of :meth:`History.delta`, so each rate given here is one too.
The true δ is convex in e^ε: where the bound at one ε is looser than its neighbours allow, the
straight line between them takes its place.

Somebody with several records is protected by all of them together: hiding k records is hiding one
after the other, so a bound h on hits becomes h(h(... h(α))), k times (group privacy).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpcohort._validate import FloatArray, number, whole_number
from dpcohort.accounting._closed_forms import gaussian_delta, gaussian_mu
from dpcohort.accounting._events import History

_POINTS = 97  # values of ε between 0 and that of δ; all bounds hold for any number of them
_BETWEEN = 64  # places between two of them at which a Gaussian curve is held against the bound
_LARGEST_EPSILON = 500.0
_ROUNDING = 1e-13
#: The false alarms that reports name: one in a hundred and one in twenty.
USUAL_FALSE_ALARMS = (0.01, 0.05)


@dataclass(frozen=True, kw_only=True)
class AttackRisk:
    """What no attack on one record can exceed.

    Attributes:
        delta: δ up to which the Gaussian curve holds; see ``mu``.
        epsilons: at which δ is known, increasing.
        deltas: δ at each of them, never understated.
        mu: of the smallest Gaussian curve that shows no less risk: no attack has more hits than one
            on a Gaussian mechanism of that µ, plus ``delta``. None where only one (ε, δ) is known.

    Example:
        >>> from dpcohort.accounting import Event
        >>> steps = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=50)
        >>> risk = attack_risk(History((steps,)), delta=1e-5)
        >>> round(risk.hits(0.01), 4), round(risk.hits(0.05), 4), round(risk.mu, 3)
        (0.0268, 0.1043, 0.423)
    """

    delta: float
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    mu: float | None = None

    @property
    def advantage(self) -> float:
        """The most by which hits can exceed false alarms."""
        growth = np.exp(np.array(self.epsilons))
        return float(np.min((growth - 1 + 2 * np.array(self.deltas)) / (growth + 1)))

    def hits(self, false_alarms: float, *, records: int = 1) -> float:
        """The most hits of an attack with this rate of false alarms.

        Args:
            false_alarms: share of those that were not in whom the attack takes for in, 0 to 1.
            records: how many records of the training are the attacked person's.

        Example:
            >>> promise = promised_risk(epsilon=1.0, delta=1e-5)
            >>> round(promise.hits(0.01), 4), round(promise.hits(0.01, records=2), 4)
            (0.0272, 0.0739)
        """
        rate = number("false_alarms", false_alarms, at_least=0, at_most=1)
        for _ in range(whole_number("records", records, at_least=1, at_most=10_000)):
            rate = self._hits_once(rate)
        return rate

    def _hits_once(self, alpha: float) -> float:
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        few = delta + np.exp(epsilon) * alpha
        many = 1 - np.exp(-epsilon) * (1 - delta - alpha)
        best = float(np.minimum(few, many).min())
        return alpha if best <= alpha else min(1.0, best * (1 + _ROUNDING))


def attack_risk(history: History, *, delta: float) -> AttackRisk:
    """What no attack on one record of this history can exceed.

    Args:
        history: all noisy steps of one client.
        delta: the client's δ.

    Raises:
        InputError: the events have different neighbouring relations.

    Example:
        >>> from dpcohort.accounting import Event
        >>> history = History((Event.of(noise_multiplier=8.0, sampling_rate=1.0, steps=20),))
        >>> risk = attack_risk(history, delta=1e-5)  # without sampling, a Gaussian mechanism
        >>> round(risk.hits(0.05), 3), round(risk.mu, 3)
        (0.139, 0.559)
    """
    delta = number("delta", delta, above=0, below=1)
    if history.steps == 0:
        return AttackRisk(delta=delta, epsilons=(0.0,), deltas=(0.0,), mu=0.0)
    top = history.epsilon(delta)
    if not top <= _LARGEST_EPSILON:
        return AttackRisk(delta=delta, epsilons=(0.0,), deltas=(1.0,), mu=math.inf)
    grid = top * np.linspace(0.0, 1.0, _POINTS) ** 1.5 if top > 0 else np.zeros(1)
    found = np.minimum.accumulate([history.delta(float(epsilon)) for epsilon in grid])
    corners = hull_corners(np.exp(grid), found)  # what is above the hull is looser than known
    epsilons, deltas = grid[corners], found[corners]
    return AttackRisk(
        delta=delta,
        epsilons=tuple(epsilons.tolist()),
        deltas=tuple(deltas.tolist()),
        mu=_covering_mu(epsilons, deltas),
    )


def promised_risk(*, epsilon: float, delta: float) -> AttackRisk:
    """What no attack can exceed if (ε, δ) is all that is known: the promise itself.

    Example:
        >>> round(promised_risk(epsilon=3.0, delta=1e-5).hits(0.05), 3)
        0.953
    """
    epsilon = number("epsilon", epsilon, at_least=0)
    delta = number("delta", delta, at_least=0, at_most=1)
    if epsilon > _LARGEST_EPSILON:
        epsilon, delta = 0.0, 1.0
    return AttackRisk(delta=delta, epsilons=(epsilon,), deltas=(delta,))


def of_two_clients(
    first: tuple[float, float], second: tuple[float, float], *, shared_noise: bool = False
) -> tuple[float, float]:
    """What two clients promise together about somebody who is with both: their budgets added.

    Each adds noise of its own to what the person has there, so the two promises compose. Where
    noise is distributed one sum may have what the person has with both, and one noise hides it: one
    part is then exchanged after the other, and the delta of the second grows.

    Args:
        first: epsilon and delta of one of them.
        second: of the other.
        shared_noise: noise is distributed, and both may be in one cohort.

    Example:
        >>> of_two_clients((1.0, 1e-5), (0.5, 1e-5))
        (1.5, 2e-05)
        >>> of_two_clients((1.0, 1e-5), (0.5, 1e-5), shared_noise=True)[1] > 2e-5
        True
    """
    (one, delta), (other, more) = sorted((first, second))
    growth = math.exp(min(one, _LARGEST_EPSILON)) if shared_noise else 1.0
    return one + other, min(1.0, delta + growth * more)


def charged_risk(risk: AttackRisk, *, epsilon: float, delta: float) -> AttackRisk:
    """What no attack can exceed where an (ε, δ) was spent on the record beside what is known.

    By simple composition with every (ε, δ) of the known curve; no Gaussian curve is fitted to it.

    Example:
        >>> training = promised_risk(epsilon=1.0, delta=1e-5)
        >>> charged_risk(training, epsilon=0.5, delta=1e-6).epsilons
        (1.5,)
    """
    more, other = number("epsilon", epsilon, at_least=0), number("delta", delta, at_least=0)
    return AttackRisk(
        delta=min(1.0, risk.delta + other),
        epsilons=tuple(one + more for one in risk.epsilons),
        deltas=tuple(min(1.0, one + other) for one in risk.deltas),
    )


def hull_corners(x: FloatArray, y: FloatArray) -> list[int]:
    """The places of the corners of the lower convex hull of points, x rising.

    Example:
        >>> hull_corners(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.9, 0.0]))
        [0, 2]
    """
    kept: list[int] = []
    for i in range(x.size):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            # b stays only if it lies below the chord from a to i
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return kept


def _covering_mu(epsilons: FloatArray, deltas: FloatArray) -> float:
    """The smallest µ whose δ is nowhere below, from the first ε to the last.

    Between two corners the bound is at most its value at the left end of each of many small parts,
    and the Gaussian's δ at least its value at the right end.
    """
    if epsilons.size == 1:
        return _smallest_mu(epsilons, deltas)
    shares = np.arange(_BETWEEN) / _BETWEEN
    low, high = np.exp(epsilons[:-1, None]), np.exp(epsilons[1:, None])
    left = deltas[:-1, None] + shares * (deltas[1:, None] - deltas[:-1, None])
    right = np.log(low + (shares + 1 / _BETWEEN) * (high - low))
    return _smallest_mu(right.ravel(), left.ravel())


def _smallest_mu(epsilons: FloatArray, deltas: FloatArray) -> float:
    if float(np.max(deltas)) >= 1:
        return math.inf
    if float(np.max(deltas)) == 0:
        return 0.0
    found = float(np.max(gaussian_mu(epsilon=epsilons, delta=np.maximum(deltas, 1e-300))))
    margin = 1e-9
    while not np.all(gaussian_delta(epsilon=epsilons, mu=found) * (1 - 1e-9) >= deltas):
        found, margin = found * (1 + margin), 2 * margin
    return found
