# SPDX-License-Identifier: Apache-2.0
"""rPDP-FL of Liu et al.: one noise multiplier, and each record's sampling rate from its epsilon.

J. Liu, J. Lou, L. Xiong, J. Liu and X. Meng, "Cross-silo federated learning with record-level
personalized differential privacy", CCS 2024, arXiv 2401.16251 (authors' code read). Clients are
chosen uniformly; inside a client each record is drawn with its own Poisson rate q(epsilon); all use
one z. Here all records of a client have its budget, so a rate belongs to a client.

The published rates come from a curve: epsilon(q) is computed at some rates, e^{a q + b} + c is
fitted to them by least squares, and q = (ln(epsilon - c) - b)/a. A fit is an approximation in both
directions. The ``formula`` mode does the same with points of our accountant, shows the largest
error of the fit, and lowers every rate that does not certify: no client is ever under-noised. The
honest mode takes the largest rate that certifies. The published accounting also multiplies in the
rate at which clients are chosen; a server that sees who uploads is not fooled by that, so it is
not taken.

The clipped sum is divided by the public B_k, not by the expected number of drawn records: strict
clients then weigh less instead of sending louder noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.certify import certify_epsilon
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.certified_noise import sampled_epsilon
from dpcohort.lab.schemes.dp_fedavg import noisy_local_steps
from dpcohort.lab.schemes.rates import SMALLEST_RATE, certified_rates, common_noise, largest_rates
from dpcohort.lab.schemes.receipt import Outcome, scheme_receipts

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["RPDP", "FittedCurve", "PersonalRates", "fit_curve"]

_FIT_RATES = np.array([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0])
_SLOPES = np.geomspace(1e-3, 30.0, 300).tolist()


@dataclass(frozen=True)
class FittedCurve:
    """eps(q) = e^{a q + b} + c, fitted to points of an accountant.

    Attributes:
        a: slope in the exponent.
        b: offset in the exponent.
        c: offset.
        largest_error: largest |fitted - computed| over the points.

    Example:
        >>> curve = FittedCurve(2.0, 0.0, -1.0, 0.0)
        >>> round(curve.rate(curve.epsilon(0.3)), 12)
        0.3
    """

    a: float
    b: float
    c: float
    largest_error: float

    def epsilon(self, rate: float) -> float:
        """The fitted epsilon."""
        return float(np.exp(self.a * rate + self.b) + self.c)

    def rate(self, epsilon: float) -> float:
        """The rate with this fitted epsilon, cut to [0, 1]."""
        if epsilon <= self.c:
            return 0.0
        return float(np.clip((np.log(epsilon - self.c) - self.b) / self.a, 0.0, 1.0))


def fit_curve(*, noise_multiplier: float, steps: int, delta: float) -> FittedCurve:
    """The published curve through points of our accountant.

    Example:
        >>> curve = fit_curve(noise_multiplier=4.0, steps=50, delta=1e-5)
        >>> 0.01 < curve.largest_error < 1.0
        True
    """
    points = np.asarray(
        certify_epsilon(
            method="pld",
            delta=np.full(_FIT_RATES.shape, delta),
            noise_multiplier=noise_multiplier,
            sampling_rate=_FIT_RATES,
            steps=steps,
        )
    )
    # For a given a the curve is linear in e^b and c; a near 0 is a straight line.
    best: tuple[float, FittedCurve] | None = None
    for slope in _SLOPES:
        columns = np.stack([np.expm1(slope * _FIT_RATES) / slope, np.ones_like(_FIT_RATES)], axis=1)
        (steepness, offset), *_ = np.linalg.lstsq(columns, points, rcond=None)
        if steepness <= 0:
            continue
        residual = columns @ np.array([steepness, offset]) - points
        square = float(residual @ residual)
        if best is None or square < best[0]:
            scale = float(steepness) / slope
            error = float(np.abs(residual).max())
            best = square, FittedCurve(slope, float(np.log(scale)), float(offset) - scale, error)
    if best is None:
        raise InputError.because(
            f"the published curve cannot be fitted at z = {noise_multiplier:g}, {steps} steps. "
            "Use the honest mode, which needs no curve."
        )
    return best[1]


@dataclass(frozen=True, kw_only=True)
class PersonalRates:
    """One noise, a rate for each client, and where they came from.

    Attributes:
        noise_multiplier: z.
        rates: Poisson rate of each client's records; 0 sits out.
        claimed: epsilon by the fitted curve, NaN without one.
        largest_error: of the fits, in epsilon; 0 without one.
        lowered: how many fitted rates did not certify and were lowered.
    """

    noise_multiplier: float
    rates: FloatArray
    claimed: FloatArray
    largest_error: float = 0.0
    lowered: int = 0


@dataclass(frozen=True, kw_only=True)
class RPDP:
    """Record-level personal rates under one noise.

    Attributes:
        mode: ``honest`` (rates by our accountant) or ``formula`` (rates by the fitted curve,
            certified and lowered where they must be).

    Example:
        >>> RPDP().card.name
        'rpdp'
    """

    mode: Mode = "honest"

    @property
    def card(self) -> Card:
        """The scheme in words."""
        return Card(
            name="rpdp",
            title="one noise, sampling rates of records by their budget",
            unit="record",
            neighbours="zero-out",
            sees="each client's update",
            accountant="PLD of the Poisson-sampled Gaussian",
            needs="nothing",
            reference="Liu et al., CCS 2024, arXiv 2401.16251",
            source="authors' code read",
            formula="rates by the fit eps(q) = e^(a q + b) + c, lowered until they certify",
        )

    def personal_rates(
        self, population: Population, *, mean_rate: float, steps: IntArray
    ) -> PersonalRates:
        """The z at which the mean rate over records is ``mean_rate``, and each client's rate."""
        some = ~population.public & (steps > 0)
        rates = np.full(len(population), mean_rate)
        claimed = np.full(len(population), np.nan)
        if not some.any():
            return PersonalRates(noise_multiplier=0.0, rates=rates, claimed=claimed)
        budgets = {
            "epsilon": population.epsilon[some],
            "delta": population.delta[some],
            "steps": steps[some],
        }
        z = common_noise(mean_rate=mean_rate, weights=population.sizes[some], **budgets)
        if self.mode == "honest":
            rates[some] = largest_rates(noise_multiplier=z, **budgets)
            return PersonalRates(noise_multiplier=z, rates=rates, claimed=claimed)
        error = 0.0
        for k in np.flatnonzero(some).tolist():
            curve = fit_curve(
                noise_multiplier=z, steps=int(steps[k]), delta=float(population.delta[k])
            )
            rate = curve.rate(float(population.epsilon[k]))
            rates[k] = rate if rate >= SMALLEST_RATE else 0.0
            claimed[k] = curve.epsilon(rate)
            error = max(error, curve.largest_error)
        fitted = rates[some]
        rates[some] = certified_rates(fitted, noise_multiplier=z, **budgets)
        return PersonalRates(
            noise_multiplier=z,
            rates=rates,
            claimed=claimed,
            largest_error=error,
            lowered=int((rates[some] < fitted).sum()),
        )

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        from dpcohort.lab.schemes.rounds import mean_of_cohort, participations, train_rounds

        people, local = federation.population, federation.training.local_steps
        cohorts = federation.cohorts()
        mean_rate = float(federation.batch_sizes.sum() / federation.sizes.sum())
        plan = self.personal_rates(
            people, mean_rate=mean_rate, steps=local * participations(cohorts, len(federation))
        )
        noise = np.where(people.public, 0.0, plan.noise_multiplier)
        # A client whose rate is 0 has nothing to say and is asked for nothing.
        cohorts = [cohort[plan.rates[cohort] > 0] for cohort in cohorts]
        spent = np.zeros(len(federation), dtype=np.int64)

        def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
            spent[k] += local
            return noisy_local_steps(
                federation, t, k, weights, rate=float(plan.rates[k]), noise=float(noise[k])
            )

        return train_rounds(
            federation,
            mean_of_cohort(federation, cohorts, update),
            card=self.card,
            mode=self.mode,
            receipts=lambda: scheme_receipts(
                people,
                self.card,
                self.mode,
                claimed=plan.claimed,
                certified=sampled_epsilon(people, noise, plan.rates, spent),
                noise=noise,
                uses=spent,
                assumptions=["batches are drawn by the client and known to nobody else"],
            ),
            notes=lambda: self._notes(plan, people),
        )

    def _notes(self, plan: PersonalRates, people: Population) -> list[str]:
        found = []
        out = int(((plan.rates == 0) & ~people.public).sum())
        if out:
            found.append(f"{out} clients sit out: at this noise no useful rate keeps their budget.")
        if self.mode == "formula":
            found.append(
                f"The fitted curves are off by up to {plan.largest_error:.3g} in epsilon; "
                f"{plan.lowered} of {int((~people.public).sum())} rates did not certify and were "
                "lowered."
            )
        return found
