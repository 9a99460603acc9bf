# SPDX-License-Identifier: Apache-2.0
"""The paper's noise exactly as printed: Lemmas 1 and 2, V_k and the variance of Algorithm 1.

These formulas are a record of the paper (arXiv 2602.22633), not a proof of privacy. Three steps of
the printed argument do not hold in general:

* Lemma 1 is applied to the whole composition, which analyses one batch used in every step;
  Algorithm 1 draws a fresh batch in each.
* Neighbours that "differ in one entry" move the mean of a batch of fixed size by up to 2C/B; the
  variance is computed for C/B.
* Lemma 2 is stated for every epsilon > 0 and fails for large ones, where the mean privacy loss
  alone exceeds epsilon.

For most budgets the noise is far more than needed, for some it is too little. What a client really
gets is decided by the certificate of its (noise multiplier, sampling rate, steps), never by these
formulas. Where the values are certified and where they are not: :mod:`dpcohort.accounting.certify`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array
from dpcohort.accounting.contract import broadcast_fields, float_or_array
from dpcohort.errors import InputError

__all__ = [
    "amplified_budget",
    "composition_variance",
    "noise_level",
    "noise_variance",
    "paper_noise_multiplier",
]


def amplified_budget(
    *, epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike
) -> tuple[Any, Any]:
    """Lemma 1: the budget that a mechanism may spend on a batch, for (epsilon, delta) on the data.

    epsilon' = log(1 + (e^epsilon - 1)/r) and delta' = delta/r. It holds for a single use; the paper
    also applies it to a composition, which has no proof. delta' is returned as printed, above 1
    where delta > r.

    Args:
        epsilon: budget on the data, above 0.
        delta: budget on the data, between 0 and 1.
        sampling_rate: r, share of the records in a batch, in (0, 1].

    Returns:
        (epsilon', delta').

    Example:
        >>> inner, delta = amplified_budget(epsilon=1.0, delta=1e-5, sampling_rate=0.1)
        >>> round(inner, 4), delta
        (2.9005, 0.0001)
    """
    eps, target, rate = broadcast_fields(
        epsilon=_epsilon(epsilon), delta=_delta(delta), sampling_rate=_rate(sampling_rate)
    )
    return float_or_array(_amplified(eps, rate)), float_or_array(target / rate)


def composition_variance(
    *, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike, sensitivity: ArrayLike
) -> Any:
    """Lemma 2: the noise variance 8 T S^2 log(e + epsilon/delta) / epsilon^2 for T uses.

    Printed "for any epsilon > 0", which is false for large epsilon; nothing here checks it.

    Args:
        epsilon: above 0.
        delta: between 0 and 1.
        steps: T, a whole number, at least 0.
        sensitivity: S, above 0.

    Returns:
        The variance per coordinate.

    Example:
        >>> round(composition_variance(epsilon=1.0, delta=1e-5, steps=10, sensitivity=1.0), 3)
        921.036
    """
    eps, target, count, width = broadcast_fields(
        epsilon=_epsilon(epsilon),
        delta=_delta(delta),
        steps=_whole("steps", steps),
        sensitivity=float_array("sensitivity", sensitivity, above=0),
    )
    return float_or_array(8.0 * count * width**2 * _log_term(eps, target) / eps**2)


def noise_level(
    *, epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike, size: ArrayLike
) -> Any:
    """V_k of Equation (7): noise variance of one step of one draw, in units of the clip squared.

    V_k = 8 log(e + r e'/delta) / (|M_k|^2 r^2 e'^2) with e' of Lemma 1. Not proved to be private,
    see the module; the certificate decides.

    Args:
        epsilon: above 0.
        delta: between 0 and 1.
        sampling_rate: r_k, in (0, 1].
        size: |M_k|, number of records, above 0.

    Returns:
        V_k, above 0.

    Example:
        >>> value = noise_level(epsilon=1.0, delta=1e-5, sampling_rate=0.1, size=500)
        >>> round(value, 6)
        0.003908
    """
    eps, target, rate, records = broadcast_fields(
        epsilon=_epsilon(epsilon),
        delta=_delta(delta),
        sampling_rate=_rate(sampling_rate),
        size=float_array("size", size, above=0),
    )
    return float_or_array((_unit_multiplier(eps, target, rate) / (records * rate)) ** 2)


def noise_variance(
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    size: ArrayLike,
    draws: ArrayLike,
    local_steps: ArrayLike,
    clip: ArrayLike,
) -> Any:
    """NoiseComputation of Algorithm 1, Equation (6): sigma_k^2 = V_k T_k T^l C^2.

    The variance per coordinate of the noise on the mean of a batch. Not proved to be private, see
    the module; the certificate decides.

    Args:
        epsilon: above 0.
        delta: between 0 and 1.
        sampling_rate: r_k, in (0, 1].
        size: |M_k|, number of records, above 0.
        draws: T_k, how often the client is drawn, a whole number, at least 0.
        local_steps: T^l, a whole number, at least 0.
        clip: C, above 0.

    Returns:
        sigma_k^2.

    Example:
        >>> budget = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "size": 500}
        >>> round(noise_variance(**budget, draws=10, local_steps=5, clip=1.0), 5)
        0.19542
    """
    level = noise_level(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, size=size)
    level, drawn, local, bound = broadcast_fields(
        noise_level=np.asarray(level),
        draws=_whole("draws", draws),
        local_steps=_whole("local_steps", local_steps),
        clip=float_array("clip", clip, above=0),
    )
    return float_or_array(level * drawn * local * bound**2)


def paper_noise_multiplier(
    *, epsilon: ArrayLike, delta: ArrayLike, sampling_rate: ArrayLike, steps: ArrayLike
) -> Any:
    """The noise of Equation (6) as a noise multiplier: z = sigma_k B/C = sqrt(8 T log(.)) / e'.

    With B = r |M_k| the size cancels: z depends on the budget, the rate and T = T_k T^l only. Not
    proved to be private, see the module; the certificate decides.

    Args:
        epsilon: above 0.
        delta: between 0 and 1.
        sampling_rate: r_k, in (0, 1].
        steps: T = T_k T^l, a whole number, at least 0.

    Returns:
        z, 0 where there are no steps.

    Example:
        >>> budget = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1}
        >>> round(paper_noise_multiplier(**budget, steps=50), 3)
        22.103
    """
    eps, target, rate, count = broadcast_fields(
        epsilon=_epsilon(epsilon),
        delta=_delta(delta),
        sampling_rate=_rate(sampling_rate),
        steps=_whole("steps", steps),
    )
    return float_or_array(_unit_multiplier(eps, target, rate) * np.sqrt(count))


def _unit_multiplier(eps: FloatArray, delta: FloatArray, rate: FloatArray) -> FloatArray:
    """The multiplier of one step, sqrt(8 log(e + r e'/delta)) / e'."""
    inner = _amplified(eps, rate)
    return np.asarray(np.sqrt(8.0 * _log_term(rate * inner, delta)) / inner)


def _amplified(eps: FloatArray, rate: FloatArray) -> FloatArray:
    """log(1 + (e^eps - 1)/r) without overflow or cancellation."""
    small = np.log1p(np.expm1(np.minimum(eps, 1.0)) / rate)
    # the same with e^eps/r taken out, for eps above 1
    large = eps - np.log(rate) + np.log1p((rate - 1.0) * np.exp(-eps))
    return np.asarray(np.where(eps < 1.0, small, large))


def _log_term(numerator: FloatArray, delta: FloatArray) -> FloatArray:
    """log(e + numerator/delta), where the quotient may not be a double."""
    return np.asarray(np.logaddexp(1.0, np.log(numerator) - np.log(delta)))


def _epsilon(epsilon: ArrayLike) -> FloatArray:
    return float_array("epsilon", epsilon, above=0)


def _delta(delta: ArrayLike) -> FloatArray:
    return float_array("delta", delta, above=0, below=1)


def _rate(sampling_rate: ArrayLike) -> FloatArray:
    return float_array("sampling_rate", sampling_rate, above=0, at_most=1)


def _whole(field: str, values: ArrayLike) -> FloatArray:
    array = float_array(field, values, at_least=0)
    fractional = np.atleast_1d(array % 1 != 0)
    if fractional.any():
        given = float(np.atleast_1d(array)[fractional][0])
        raise InputError(field, given=given, allowed="a whole number, at least 0")
    return array
