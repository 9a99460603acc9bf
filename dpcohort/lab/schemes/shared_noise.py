# SPDX-License-Identifier: Apache-2.0
"""Schemes with one noise for all clients and individual clips or rates under it: IDP-SGD, rPDP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from dpcohort._validate import FloatArray, IntArray, choice
from dpcohort.accounting import certify_epsilon
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.lab.schemes.client_noise import noisy_local_steps
from dpcohort.lab.schemes.sampled_gaussian import (
    SMALLEST_RATE,
    certified_noise,
    certified_rates,
    common_noise,
    largest_rates,
    renyi_epsilon,
    renyi_noise,
    renyi_rate,
    sampled_epsilon,
)
from dpcohort.lab.schemes.scheme import Scheme, SchemeResult
from dpcohort.runs import Receipt

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.simulation import Simulation

__all__ = ["IDP", "RPDP", "FittedCurve", "SharedNoise", "fit_curve", "sample_rates", "scale_clips"]

_FIT_RATES = np.array([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0])
_SLOPES = np.geomspace(1e-3, 30.0, 300).tolist()


@dataclass(frozen=True, kw_only=True)
class SharedNoise:
    """One noise, and what is individual under it.

    Attributes:
        noise_multiplier: z, noise on the sum in units of C.
        rates: Poisson rate of each client's records, q_k; 0 sits out.
        clips: C_k / C of each client.
    """

    noise_multiplier: float
    rates: FloatArray
    clips: FloatArray

    @property
    def own_noise(self) -> FloatArray:
        """The noise in units of each client's own clip, z C / C_k."""
        return np.asarray(self.noise_multiplier / self.clips, dtype=np.float64)

    def notes(self, people: Population) -> list[str]:
        """Who sits out."""
        out = int(((self.rates == 0) & ~people.public).sum())
        words = f"{out} clients sit out: at this noise no useful rate keeps their budget."
        return [words] if out else []


def scale_clips(population: Population, own_noise: FloatArray, *, rate: float) -> SharedNoise:
    """Scale: individual clips under one noise and one rate.

    Args:
        population: sizes and budgets.
        own_noise: z_k that each client's budget asks for at the common rate.
        rate: r, the same for all records.

    Example:
        >>> people = Population.from_arrays(sizes=[50, 50], epsilon=[1.0, 2.0], delta=1e-5)
        >>> found = scale_clips(people, np.array([4.0, 2.0]), rate=0.1)
        >>> found.noise_multiplier, found.clips.round(2).tolist(), found.own_noise.round(2).tolist()
        (3.0, [0.75, 1.5], [4.0, 2.0])
    """
    some = ~population.public
    sizes = population.sizes[some].astype(np.float64)
    mean = float(own_noise[some] @ sizes / sizes.sum()) if some.any() else 0.0
    clips = np.ones(len(population))
    # z_k = z / clip must not fall below what was asked for, not even by rounding.
    clips[some] = mean / own_noise[some] * (1 - 1e-12)
    return SharedNoise(noise_multiplier=mean, clips=clips, rates=np.full(len(population), rate))


def sample_rates(population: Population, *, rate: float, steps: IntArray) -> SharedNoise:
    """Sample: individual rates under one noise and one clip, by our accountant.

    Args:
        population: sizes and budgets.
        rate: r, the mean rate over records.
        steps: noisy steps of each client; one without steps keeps the mean rate.

    Example:
        >>> people = Population.from_arrays(sizes=[50, 50], epsilon=[1.0, 2.0], delta=1e-5)
        >>> found = sample_rates(people, rate=0.1, steps=np.array([100, 100]))
        >>> bool(found.rates[0] < 0.1 < found.rates[1])
        True
    """
    some, z = ~population.public & (steps > 0), 0.0
    rates = np.full(len(population), float(rate))
    if some.any():
        budgets = _budgets(population, some, steps)
        z = common_noise(mean_rate=rate, weights=population.sizes[some], **budgets)
        rates[some] = largest_rates(noise_multiplier=z, **budgets)
    return SharedNoise(noise_multiplier=z, clips=np.ones(len(population)), rates=rates)


def _budgets(population: Population, some: np.ndarray, steps: IntArray) -> dict[str, FloatArray]:
    """Budgets and steps of some clients, as the searches for rates take them."""
    columns = {"epsilon": population.epsilon, "delta": population.delta, "steps": steps}
    return {name: np.asarray(column[some], dtype=np.float64) for name, column in columns.items()}


@dataclass(frozen=True, kw_only=True)
class IDP(Scheme):
    """IDP-SGD of Boenisch et al.: one noise for all, individual clips (Scale) or rates (Sample).

    F. Boenisch, C. Muehl, A. Dziedzic, R. Rinberg and N. Papernot, "Have it your way:
    individualized privacy assignment for DP-SGD", NeurIPS 2023 (authors' code read). One noisy sum
    over everyone's records a round, here through secure aggregation, so that one noise does for all
    clients:

        w <- w - alpha (sum of clipped gradients + N(0, (z C)^2)) / B.

    - *Scale*: z_k is what client k's budget needs at the common rate r; z is the mean of the z_k
      over records, and client k's records are clipped at C_k = C z / z_k. For them the noise is
      z C = z_k C_k, which is what the accountant asked for.
    - *Sample*: one clip, one z, and rates q_k such that epsilon(z, q_k, T) = epsilon_k for each
      client and the mean of q_k over records is r.

    Both are sound given sound accounting of single records. The published code calibrates by Renyi
    moments (``formula`` mode, claimed), which is safe and a little generous; the honest mode
    calibrates by privacy loss distributions. Certified is PLD in both.

    Attributes:
        variant: ``scale`` or ``sample``.
        mode: ``honest``, or ``formula`` for Renyi accounting as published.

    Example:
        >>> IDP(variant="sample").card.name
        'idp-sample'
    """

    variant: Literal["scale", "sample"]

    def __post_init__(self) -> None:
        choice("variant", self.variant, ["scale", "sample"])

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return f"idp-{self.variant}"

    def individual_noise(self, population: Population, *, rate: float, steps: int) -> SharedNoise:
        """The noise, and each client's clip and rate."""
        if self.variant == "scale":
            if self.mode == "honest":
                own = certified_noise(population, rates=rate, steps=steps)
            else:
                some, own = ~population.public, np.zeros(len(population))
                own[some] = renyi_noise(
                    epsilon=population.epsilon[some],
                    delta=population.delta[some],
                    sampling_rate=rate,
                    steps=steps,
                )
            return scale_clips(population, own, rate=rate)
        found = sample_rates(population, rate=rate, steps=np.full(len(population), steps))
        if self.mode == "honest":
            return found
        # Rates at the same z by Renyi moments, then certified like all others.
        z, rates = found.noise_multiplier, found.rates.copy()
        for k in np.flatnonzero(~population.public).tolist():
            budget = {"epsilon": float(population.epsilon[k]), "delta": float(population.delta[k])}
            by_moments = renyi_rate(noise_multiplier=z, steps=steps, **budget)
            useful = by_moments if by_moments >= SMALLEST_RATE else 0.0
            rates[k] = certified_rates([useful], noise_multiplier=z, steps=steps, **budget)[0]
        return SharedNoise(noise_multiplier=z, clips=found.clips, rates=rates)

    def run(self, simulation: Simulation) -> SchemeResult:
        """Train, and account for it."""
        from dpcohort.lab.schemes.simulation import train_scheme

        people, clip = simulation.population, simulation.training.clip
        rate = float(simulation.batch_sizes.sum() / simulation.sizes.sum())
        plan = self.individual_noise(people, rate=rate, steps=simulation.training.rounds)
        denominator = rate * simulation.total_size
        std = plan.noise_multiplier * clip / denominator
        uses = np.zeros(len(people), dtype=np.int64)

        def update(t: int, weights: Tensor) -> tuple[Tensor, float]:
            uses[plan.rates > 0] += 1
            total = weights.new_zeros(weights.shape)
            for k in range(len(people)):
                batch = simulation.batch(k, rate=float(plan.rates[k]), round=t)
                total += simulation.clipped_sum(weights, k, batch, clip * float(plan.clips[k]))
            alpha = simulation.step_size(t)
            noisy = total / denominator + std * simulation.noise(t, len(people))
            return alpha * noisy, alpha * std

        def receipts() -> list[Receipt]:
            return self.receipts(
                people,
                claimed=None if self.mode == "honest" else _renyi_epsilons(people, plan, uses),
                certified=sampled_epsilon(people, plan.own_noise, plan.rates, uses),
                noise=np.where(people.public, np.nan, plan.own_noise),
                uses=uses,
                assumptions=["the server sees the noisy sum only, never a client's own"],
            )

        return train_scheme(self, simulation, update, receipts, lambda: plan.notes(people))


def _renyi_epsilons(people: Population, plan: SharedNoise, steps: IntArray) -> FloatArray:
    found = np.full(len(people), np.nan)
    for k in np.flatnonzero(~people.public).tolist():
        found[k] = renyi_epsilon(
            noise_multiplier=float(plan.own_noise[k]),
            rate=float(plan.rates[k]),
            steps=int(steps[k]),
            delta=float(people.delta[k]),
        )
    return found


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
        residual = columns @ np.array([steepness, offset]) - points
        square = float(residual @ residual)
        if steepness > 0 and (best is None or square < best[0]):
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
class RPDP(Scheme):
    """rPDP-FL of Liu et al.: one noise multiplier, each record's sampling rate from its epsilon.

    J. Liu, J. Lou, L. Xiong, J. Liu and X. Meng, "Cross-silo federated learning with record-level
    personalized differential privacy", CCS 2024, arXiv 2401.16251 (authors' code read). Clients are
    chosen uniformly; inside a client each record is drawn with its own Poisson rate q(epsilon); all
    use one z. Here all records of a client have its budget, so a rate belongs to a client.

    The published rates come from a curve: epsilon(q) is computed at some rates, e^{a q + b} + c is
    fitted to them by least squares, and q = (ln(epsilon - c) - b)/a. A fit is an approximation in
    both directions. The ``formula`` mode does the same with points of our accountant, shows the
    largest error of the fit, and lowers every rate that does not certify: no client is ever
    under-noised. The honest mode takes the largest rate that certifies. The published accounting
    also multiplies in the rate at which clients are chosen; a server that sees who uploads is not
    fooled by that, so it is not taken.

    The clipped sum is divided by the public B_k, not by the expected number of drawn records:
    strict clients then weigh less instead of sending louder noise.

    Attributes:
        mode: ``honest`` (rates by our accountant) or ``formula`` (rates by the fitted curve,
            certified and lowered where they must be).

    Example:
        >>> RPDP().card.name
        'rpdp'
    """

    name: ClassVar[str] = "rpdp"

    def personal_rates(
        self, population: Population, *, mean_rate: float, steps: IntArray
    ) -> tuple[SharedNoise, FloatArray | None, list[str]]:
        """The z at which the mean rate over records is ``mean_rate``, and each client's rate.

        Returns:
            Noise and rates; epsilon by the fitted curve, None without one; what a reader should
            know of the fit.
        """
        plan = sample_rates(population, rate=mean_rate, steps=steps)
        some = ~population.public & (steps > 0)
        if self.mode == "honest" or not some.any():
            return plan, None, []
        z, rates, error = plan.noise_multiplier, plan.rates.copy(), 0.0
        claimed = np.full(len(population), np.nan)
        for k in np.flatnonzero(some).tolist():
            curve = fit_curve(
                noise_multiplier=z, steps=int(steps[k]), delta=float(population.delta[k])
            )
            rate = curve.rate(float(population.epsilon[k]))
            rates[k] = rate if rate >= SMALLEST_RATE else 0.0
            claimed[k] = curve.epsilon(rate)
            error = max(error, curve.largest_error)
        fitted, budgets = rates[some], _budgets(population, some, steps)
        rates[some] = certified_rates(fitted, noise_multiplier=z, **budgets)
        words = (
            f"The fitted curves are off by up to {error:.3g} in epsilon; "
            f"{int((rates[some] < fitted).sum())} of {int((~population.public).sum())} rates did "
            "not certify and were lowered."
        )
        found = SharedNoise(noise_multiplier=z, rates=rates, clips=plan.clips)
        return found, claimed, [words]

    def run(self, simulation: Simulation) -> SchemeResult:
        """Train, and account for it."""
        from dpcohort.lab.schemes.simulation import mean_of_cohort, participations, train_scheme

        people, local = simulation.population, simulation.training.local_steps
        cohorts, uses = simulation.cohorts(), np.zeros(len(people), dtype=np.int64)
        mean_rate = float(simulation.batch_sizes.sum() / simulation.sizes.sum())
        plan, claimed, words = self.personal_rates(
            people, mean_rate=mean_rate, steps=local * participations(cohorts, len(people))
        )
        noise = np.where(people.public, 0.0, plan.noise_multiplier)
        # A client whose rate is 0 has nothing to say and is asked for nothing.
        cohorts = [cohort[plan.rates[cohort] > 0] for cohort in cohorts]

        def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
            rate, own = float(plan.rates[k]), float(noise[k])
            return noisy_local_steps(simulation, t, k, weights, rate=rate, noise=own)

        def receipts() -> list[Receipt]:
            return self.receipts(
                people,
                claimed=claimed,
                certified=sampled_epsilon(people, noise, plan.rates, local * uses),
                noise=noise,
                uses=local * uses,
                assumptions=["batches are drawn by the client and known to nobody else"],
            )

        one_round = mean_of_cohort(cohorts, update, uses)
        notes = [*plan.notes(people), *words]
        return train_scheme(self, simulation, one_round, receipts, lambda: notes)
