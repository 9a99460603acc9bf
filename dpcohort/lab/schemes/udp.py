# SPDX-License-Identifier: Apache-2.0
"""UDP of Wei et al.: noise on the uploaded model, uniform clients, adaptive number of rounds.

K. Wei et al., "User-level privacy-preserving federated learning: analysis and performance
optimization", IEEE TMC 2021, arXiv 2003.00229 (authors' code read, the paper not). Each round K of
N clients are chosen uniformly, train on all their records and upload w + N(0, s^2), with

    s = D sqrt(2 q T ln(1/delta)) / epsilon,   D = 2 alpha C / n,   q = K/N.

CRD (communication rounds discounting): when the loss rose, T <- ceil(0.8 T), and what is left of
the budget is spread over the rounds that are left,

    s_t = sqrt((T - t) / ((epsilon/D)^2 / (2 q ln(1/delta)) - sum_{i<t} 1/s_i^2)).

Despite the name the unit is a record: D is how far replacing one record moves a step.

What does not hold, and what the honest mode does instead:

- *q.* The server sees who uploads, so sampling clients hides nothing from it. Honest: each client
  is charged for the uploads it really makes, T_k; cohorts are drawn before training.
- *The square root.* sqrt(2 T ln(1/delta)) D/epsilon drops the T D^2/(2 s^2) of zero-concentrated
  privacy and overspends at large epsilon. Honest: the exact Gaussian curve (Balle and Wang).
- *D* is proved for one full-batch step of clipped gradients (replace-one). After a second step the
  other records' gradients have moved too, and only the length of an update is known: the factor is
  then n times the number of steps. This is why one local step is the default here.
- *The loss* behind CRD. In the authors' code it is the mean training loss of the clients, which is
  a leak. Here it is the loss on the server's own public records. The noise then depends on earlier
  outputs, which ordinary composition does not allow; Gaussians with a fixed cap on the sum of
  mu_t^2 do (fully adaptive composition: arXiv 2210.17520, 2209.15596). The certified epsilon is
  that of the cap, not of what happened to be spent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number, whole_number
from dpcohort.accounting.certify import certify_epsilon
from dpcohort.accounting.gaussian import gaussian_mu
from dpcohort.errors import BudgetExceededError
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.certified_noise import certified_noise
from dpcohort.lab.schemes.receipt import Outcome, scheme_receipts

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["UDP", "discounted_noise", "formula_noise"]

_DISCOUNT = 0.8


def formula_noise(*, epsilon: float, delta: float, rounds: float) -> float:
    """The published noise in units of alpha C / n: z = 2 sqrt(2 q T ln(1/delta)) / epsilon.

    Args:
        epsilon: promised.
        delta: promised.
        rounds: q T, expected uploads.

    Example:
        >>> round(formula_noise(epsilon=1.0, delta=1e-5, rounds=50), 2)
        67.86
    """
    return 2 * math.sqrt(2 * rounds * math.log(1 / delta)) / epsilon


def discounted_noise(*, left: float, budget: float, spent: float) -> float:
    """CRD: the noise that spreads the rest of a budget of sum 1/z^2 evenly over the uploads left.

    Example:
        >>> round(discounted_noise(left=4, budget=2.0, spent=1.0), 6)
        2.0
    """
    number("left", left, above=0)
    rest = budget - spent
    if rest <= 0:
        raise BudgetExceededError(
            f"the cap on sum 1/z^2, {budget:g}, is spent and {left:g} uploads are left."
        )
    # The last digit goes to the noise, so that the cap is never passed by rounding.
    return math.sqrt(left / rest) * (1 + 1e-12)


@dataclass(frozen=True, kw_only=True)
class UDP:
    """Update-level noise with uniform clients.

    Attributes:
        mode: ``honest``, or ``formula`` for the published noise.
        adaptive_rounds: CRD.
        local_steps: full-batch steps of an upload.
        discount: of the number of rounds when the loss rose.

    Example:
        >>> UDP(adaptive_rounds=True).card.name
        'udp-crd'
    """

    mode: Mode = "honest"
    adaptive_rounds: bool = False
    local_steps: int = 1
    discount: float = _DISCOUNT

    def __post_init__(self) -> None:
        whole_number("local_steps", self.local_steps, at_least=1)
        number("discount", self.discount, above=0, below=1)

    @property
    def card(self) -> Card:
        """The scheme in words."""
        adaptive = self.adaptive_rounds
        return Card(
            name="udp-crd" if adaptive else "udp",
            title="noise on the uploaded model, uniform clients"
            + (", fewer rounds when the public loss rises" if adaptive else ""),
            unit="record",
            neighbours="replace-one",
            sees="each client's update",
            accountant="exact Gaussian curve" + (", cap on the sum of mu^2" if adaptive else ""),
            needs="public data on the server" if adaptive else "nothing",
            reference="Wei et al., IEEE TMC 2021, arXiv 2003.00229",
            source="authors' code read",
            formula="s = D sqrt(2 q T ln(1/delta)) / epsilon; amplification by client sampling "
            "claimed, not proved against a server that sees who uploads",
        )

    def sensitivity(self, sizes: IntArray) -> FloatArray:
        """How far zeroing out a record moves an update, in units of alpha C / n."""
        if self.local_steps == 1:
            return np.ones(len(sizes))
        # Only the length of an update, at most steps * alpha * C, is known.
        return self.local_steps * sizes.astype(np.float64)

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        from dpcohort.lab.schemes.rounds import mean_of_cohort, train_rounds

        course = _Course(self, federation)

        def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
            noise = course.next_noise(t, k)
            alpha, local = federation.step_size(t), weights.clone()
            size, clip = int(federation.sizes[k]), federation.training.clip
            everyone = np.arange(size)
            for _ in range(self.local_steps):
                local = local - alpha * federation.clipped_sum(local, k, everyone, clip) / size
            std = noise * alpha * clip / size
            return weights - local + std * federation.noise(t, k), std

        def one_round(t: int, weights: Tensor) -> tuple[Tensor, float] | None:
            course.look(t, weights)
            if t >= course.rounds:
                return None
            return mean_of_cohort(federation, course.cohorts, update)(t, weights)

        return train_rounds(
            federation,
            one_round,
            card=self.card,
            mode=self.mode,
            receipts=course.receipts,
            notes=course.notes,
        )


class _Course:
    """Noise and spending of a UDP training as it goes on."""

    def __init__(self, scheme: UDP, federation: Federation) -> None:
        from dpcohort.lab.schemes.rounds import participations

        self.scheme, self.federation = scheme, federation
        self.cohorts = federation.cohorts()
        self.rounds = federation.training.rounds
        people = federation.population
        clients = len(people)
        share = min(federation.training.cohort_size, clients) / clients
        self.uses = np.zeros(clients, dtype=np.int64)
        self.spent = np.zeros(clients)  # sum of 1/z^2
        self.last_noise = np.zeros(clients)
        self.factor = scheme.sensitivity(people.sizes)
        # The cap on a client's sum of 1/z^2, fixed before training.
        self.budget = np.full(clients, math.inf)
        self.constant = np.zeros(clients)
        self._loss = math.inf
        planned = participations(self.cohorts, clients)
        if scheme.mode == "honest":
            self.constant = self.factor * certified_noise(
                people, rates=np.ones(clients), steps=planned, neighbours="replace-one"
            )
        self.charged = np.zeros(clients)
        self._published = np.zeros(clients)
        for k in np.flatnonzero(~people.public).tolist():
            epsilon, delta = float(people.epsilon[k]), float(people.delta[k])
            if scheme.mode == "formula":
                self.budget[k] = (
                    self.rounds
                    / formula_noise(epsilon=epsilon, delta=delta, rounds=share * self.rounds) ** 2
                )
                self.constant[k] = math.sqrt(self.rounds / self.budget[k])
            else:
                mu = gaussian_mu(epsilon=epsilon, delta=delta) / (2 * self.factor[k])
                # A hair less, so that the certificate of the cap holds in spite of its rounding.
                self.budget[k] = (mu * (1 - 1e-9)) ** 2

    def next_noise(self, t: int, k: int) -> float:
        """The noise of a client's next upload, counted before it is used."""
        self.uses[k] += 1
        if math.isinf(self.budget[k]):
            return 0.0
        noise = float(self.constant[k])
        if self.scheme.adaptive_rounds:
            noise = self._adaptive_noise(t, k)
        self.spent[k] += noise**-2
        self.last_noise[k] = noise
        return noise

    def _adaptive_noise(self, t: int, k: int) -> float:
        if self.scheme.mode == "formula":
            return float(self._published[k])
        left = sum(int(k in cohort) for cohort in self.cohorts[t : self.rounds])
        return discounted_noise(left=left, budget=self.budget[k], spent=self.spent[k])

    def _publish(self, t: int) -> None:
        """The published CRD charges every client for every round, whether it uploads or not."""
        for k in np.flatnonzero(np.isfinite(self.budget)).tolist():
            noise = discounted_noise(
                left=self.rounds - t, budget=self.budget[k], spent=self.charged[k]
            )
            self.charged[k] += noise**-2
            self._published[k] = noise

    def look(self, t: int, weights: Any) -> None:
        """CRD: shorten the training if the public loss rose; never to before this round."""
        if not self.scheme.adaptive_rounds:
            return
        if t > 0:
            loss = self.federation.server_loss(weights)
            if loss >= self._loss:
                self.rounds = max(math.ceil(self.scheme.discount * self.rounds), t)
            self._loss = loss
        if self.scheme.mode == "formula" and t < self.rounds:
            self._publish(t)

    def receipts(self) -> list[Any]:
        people, scheme = self.federation.population, self.scheme
        claimed = np.where(people.public, np.nan, people.epsilon)
        certified = np.full(len(people), np.nan)
        for k in np.flatnonzero(~people.public).tolist():
            # Adaptive noise: the cap counts. Fixed noise: the uploads that were made.
            squares = self.budget[k] if scheme.adaptive_rounds else self.spent[k]
            noise = self.factor[k] ** -1 / math.sqrt(squares) if squares > 0 else math.inf
            certified[k] = certify_epsilon(
                method="pld",
                delta=float(people.delta[k]),
                noise_multiplier=noise,
                sampling_rate=1.0,
                steps=1.0,
                neighbours="replace-one",
            )
        return scheme_receipts(
            people,
            scheme.card,
            scheme.mode,
            claimed=claimed if scheme.mode == "formula" else np.full(len(people), np.nan),
            certified=certified,
            noise=np.where(self.uses > 0, self.last_noise / self.factor, np.nan),
            uses=self.uses,
            assumptions=self._assumptions(),
        )

    def _assumptions(self) -> list[str]:
        found = ["gradients are clipped record by record"]
        if self.scheme.local_steps == 1:
            found.append("an upload is one full-batch step, so a record moves it by 2 alpha C / n")
        else:
            found.append("several local steps: only the length of an update bounds a record")
        if self.scheme.adaptive_rounds:
            found.append("the loss that shortens the training is of public server data")
            found.append("fully adaptive composition of Gaussians under a fixed cap on mu^2")
        return found

    def notes(self) -> list[str]:
        if not self.scheme.adaptive_rounds:
            return []
        done = max(int(self.uses.max(initial=0)), 0)
        return [
            f"CRD: {self.rounds} of {self.federation.training.rounds} rounds; no client uploaded "
            f"more than {done} times."
        ]
