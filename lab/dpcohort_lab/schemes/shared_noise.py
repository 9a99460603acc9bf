# SPDX-License-Identifier: Apache-2.0
"""Schemes with one noise for all clients and individual clips or rates under it: IDP-SGD, rPDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpcohort.accounting import certify_epsilon
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort_lab.checks import FloatArray, IntArray
from dpcohort_lab.schemes.client_noise import noisy_local_steps
from dpcohort_lab.schemes.sampled_gaussian import (
    SMALLEST_RATE,
    certified_noise,
    certified_rate,
    common_noise,
    largest_rate,
    renyi_epsilon,
    renyi_noise,
    renyi_rate,
    sampled_epsilon,
)
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

_FIT_RATES = np.array([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0])
_SLOPES = np.geomspace(1e-3, 30.0, 300).tolist()


def scale_clips(population: Population, own_noise: FloatArray) -> tuple[float, FloatArray]:
    """Scale: individual clips under one noise and one rate.

    Args:
        population: sizes and budgets.
        own_noise: z_k that each client's budget asks for at the common rate.

    Returns:
        z, noise on the sum in units of C, and C_k / C of each client.

    Example:
        >>> people = Population.from_arrays(sizes=[50, 50], epsilon=[1.0, 2.0], delta=1e-5)
        >>> noise, clips = scale_clips(people, np.array([4.0, 2.0]))
        >>> noise, clips.round(2).tolist()
        (3.0, [0.75, 1.5])
    """
    some = ~population.public
    sizes = population.sizes[some].astype(np.float64)
    mean = float(own_noise[some] @ sizes / sizes.sum()) if some.any() else 0.0
    clips = np.ones(len(population))
    # z_k = z / clip must not fall below what was asked for, not even by rounding.
    clips[some] = mean / own_noise[some] * (1 - 1e-12)
    return mean, clips


def sample_rates(
    population: Population, *, rate: float, steps: IntArray
) -> tuple[float, FloatArray]:
    """Sample: individual rates under one noise and one clip, by our accountant.

    Args:
        population: sizes and budgets.
        rate: r, the mean rate over records.
        steps: noisy steps of each client; one without steps keeps the mean rate.

    Returns:
        z, noise on the sum in units of C, and the rate of each client's records; 0 sits out.

    Example:
        >>> people = Population.from_arrays(sizes=[50, 50], epsilon=[1.0, 2.0], delta=1e-5)
        >>> _, rates = sample_rates(people, rate=0.1, steps=np.array([100, 100]))
        >>> bool(rates[0] < 0.1 < rates[1])
        True
    """
    some, z = ~population.public & (steps > 0), 0.0
    rates = np.full(len(population), float(rate))
    if some.any():
        z = common_noise(
            mean_rate=rate,
            weights=population.sizes[some],
            epsilon=population.epsilon[some],
            delta=population.delta[some],
            steps=steps[some].astype(np.float64),
        )
        for k in np.flatnonzero(some).tolist():
            rates[k] = largest_rate(
                noise_multiplier=z, **budget_of(population, k), steps=float(steps[k])
            )
    return z, rates


def _sitting_out(people: Population, rates: FloatArray) -> list[str]:
    out = int(((rates == 0) & ~people.public).sum())
    words = f"{out} clients sit out: at this noise no useful rate keeps their budget."
    return [words] if out else []


def idp(
    simulation: Simulation, mode: Mode, *, variant: Literal["scale", "sample"]
) -> tuple[RoundUpdate, Account]:
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

    Args:
        simulation: clients, data, model.
        mode: ``honest``, or ``formula`` for Renyi accounting as published.
        variant: ``scale`` or ``sample``.
    """
    people, clip = simulation.population, simulation.training.clip
    rate = float(simulation.batch_sizes.sum() / simulation.sizes.sum())
    noise, rates, clips = individual_noise(
        people, mode, variant, rate=rate, steps=simulation.training.rounds
    )
    own_noise = noise / clips  # in units of each client's own clip
    denominator = rate * simulation.total_size
    std = noise * clip / denominator
    uses = np.zeros(len(people), dtype=np.int64)

    def update(t: int, weights: Tensor) -> tuple[Tensor, float]:
        uses[rates > 0] += 1
        total = weights.new_zeros(weights.shape)
        for k in range(len(people)):
            batch = simulation.batch(k, rate=float(rates[k]), round=t)
            total += simulation.clipped_sum(weights, k, batch, clip * float(clips[k]))
        alpha = simulation.step_size(t)
        noisy = total / denominator + std * simulation.noise(t, len(people))
        return alpha * noisy, alpha * std

    def account() -> dict[str, Any]:
        claimed = np.full(len(people), np.nan)
        for k in np.flatnonzero(~people.public).tolist() if mode == "formula" else ():
            claimed[k] = renyi_epsilon(
                noise_multiplier=float(own_noise[k]),
                rate=float(rates[k]),
                steps=int(uses[k]),
                delta=float(people.delta[k]),
            )
        return {
            "claimed": claimed,
            "certified": sampled_epsilon(people, own_noise, rates, uses),
            "noise": np.where(people.public, np.nan, own_noise),
            "uses": uses,
            "assumptions": ["the server sees the noisy sum only, never a client's own"],
            "notes": _sitting_out(people, rates),
        }

    return update, account


def individual_noise(
    population: Population, mode: Mode, variant: str, *, rate: float, steps: int
) -> tuple[float, FloatArray, FloatArray]:
    """The noise of :func:`idp`, and each client's rate and clip (C_k / C)."""
    if variant == "scale":
        if mode == "honest":
            own = certified_noise(population, rates=rate, steps=steps)
        else:
            own = np.zeros(len(population))
            for k in np.flatnonzero(~population.public).tolist():
                own[k] = renyi_noise(**budget_of(population, k), rate=rate, steps=steps)
        noise, clips = scale_clips(population, own)
        return noise, np.full(len(population), rate), clips
    noise, rates = sample_rates(population, rate=rate, steps=np.full(len(population), steps))
    # As published: rates at the same z by Renyi moments, then certified like all others.
    for k in np.flatnonzero(~population.public).tolist() if mode == "formula" else ():
        setting: dict[str, Any] = {"noise_multiplier": noise, "steps": steps}
        setting |= budget_of(population, k)
        by_moments = renyi_rate(**setting)
        rates[k] = certified_rate(by_moments if by_moments >= SMALLEST_RATE else 0.0, **setting)
    return noise, rates, np.ones(len(population))


def fit_curve(
    *, noise_multiplier: float, steps: int, delta: float
) -> tuple[float, float, float, float]:
    """The published curve eps(q) = e^{a q + b} + c through points of our accountant.

    Returns:
        a, b, c, and the largest |fitted - computed| over the points.

    Example:
        >>> *_, error = fit_curve(noise_multiplier=4.0, steps=50, delta=1e-5)
        >>> 0.01 < error < 1.0
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
    least, best = np.inf, None
    for slope in _SLOPES:
        columns = np.stack([np.expm1(slope * _FIT_RATES) / slope, np.ones_like(_FIT_RATES)], axis=1)
        (steepness, offset), *_ = np.linalg.lstsq(columns, points, rcond=None)
        residual = columns @ np.array([steepness, offset]) - points
        square = float(residual @ residual)
        if steepness > 0 and square < least:
            scale, error = float(steepness) / slope, float(np.abs(residual).max())
            least, best = square, (slope, float(np.log(scale)), float(offset) - scale, error)
    if best is None:
        raise InputError.because(
            f"the published curve cannot be fitted at z = {noise_multiplier:g}, {steps} steps. "
            "Use the honest mode, which needs no curve."
        )
    return best


def rpdp(simulation: Simulation, mode: Mode) -> tuple[RoundUpdate, Account]:
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

    Args:
        simulation: clients, data, model.
        mode: ``honest`` (rates by our accountant) or ``formula`` (rates by the fitted curve,
            certified and lowered where they must be).
    """
    people, local = simulation.population, simulation.training.local_steps
    cohorts, uses = simulation.cohorts(), np.zeros(len(people), dtype=np.int64)
    mean_rate = float(simulation.batch_sizes.sum() / simulation.sizes.sum())
    z, rates, claimed, words = personal_rates(
        people, mode, mean_rate=mean_rate, steps=local * participations(cohorts, len(people))
    )
    noise = np.where(people.public, 0.0, z)
    # A client whose rate is 0 has nothing to say and is asked for nothing.
    cohorts = [cohort[rates[cohort] > 0] for cohort in cohorts]

    def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
        rate, own = float(rates[k]), float(noise[k])
        return noisy_local_steps(simulation, t, k, weights, rate=rate, noise=own)

    def account() -> dict[str, Any]:
        return {
            "claimed": claimed,
            "certified": sampled_epsilon(people, noise, rates, local * uses),
            "noise": noise,
            "uses": local * uses,
            "assumptions": ["batches are drawn by the client and known to nobody else"],
            "notes": [*_sitting_out(people, rates), *words],
        }

    return mean_of_cohort(cohorts, update, uses), account


def personal_rates(
    population: Population, mode: Mode, *, mean_rate: float, steps: IntArray
) -> tuple[float, FloatArray, FloatArray | None, list[str]]:
    """The z at which the mean rate over records is ``mean_rate``, and each client's rate.

    Returns:
        Noise and rates; epsilon by the fitted curve, None without one; what a reader should
        know of the fit.
    """
    z, rates = sample_rates(population, rate=mean_rate, steps=steps)
    some = ~population.public & (steps > 0)
    if mode == "honest" or not some.any():
        return z, rates, None, []
    claimed, largest_error, lowered = np.full(len(population), np.nan), 0.0, 0
    for k in np.flatnonzero(some).tolist():
        setting: dict[str, Any] = {"noise_multiplier": z, "steps": int(steps[k])}
        budget = budget_of(population, k)
        a, b, c, error = fit_curve(**setting, delta=budget["delta"])
        largest_error, rate = max(largest_error, error), 0.0
        if budget["epsilon"] > c:
            rate = float(np.clip((np.log(budget["epsilon"] - c) - b) / a, 0.0, 1.0))
        claimed[k] = np.exp(a * rate + b) + c
        fitted = rate if rate >= SMALLEST_RATE else 0.0
        rates[k] = certified_rate(fitted, **setting, **budget)
        lowered += rates[k] < fitted
    words = (
        f"The fitted curves are off by up to {largest_error:.3g} in epsilon; "
        f"{lowered} of {int((~population.public).sum())} rates did not certify and were lowered."
    )
    return z, rates, claimed, [words]
