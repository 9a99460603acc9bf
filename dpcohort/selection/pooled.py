# SPDX-License-Identifier: Apache-2.0
"""Selection where noise is pooled: budgets become weights (docs/pooled.md).

A rule says what effective weight w_k each client shall have in the model. How often a client takes
part is then free: k's mean gradient enters with the factor g_k = w_k / p_k in a share p_k of all
draws. A client drawn T_k times needs noise of standard deviation g_k s_k on the sum of a cohort,
s_k = c_k sqrt(T_k) or so, and the noise of the cohort must reach the largest of these. It is
smallest where all are equal: p_k proportional to (c_k w_k)^2, up to once in every cohort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import FloatArray

if TYPE_CHECKING:
    from dpcohort.accounting.deployed_noise import NoiseLevels
    from dpcohort.training import Training

#: A client's mean gradient enters with at most this factor: who takes part rarely speaks loudly,
#: and the model would follow whoever happens to be drawn.
LARGEST_WEIGHT = 4.0

#: What dividing and multiplying again may lose.
_ROUNDING = 1e-12


def pooled_probabilities(wanted: FloatArray, levels: NoiseLevels, training: Training) -> FloatArray:
    """How often each client shall be drawn: p_k = (c_k w_k / t)^2, at most 1 / K, summing to 1.

    Args:
        wanted: w, effective weight of each client in the model.
        levels: how each client's noise grows with its draws.
        training: rounds and cohort size.
    """
    cap = 1.0 / training.cohort_size
    draws = np.maximum(1.0, wanted * training.total_draws)
    costs = (levels.level + levels.floor / draws) * wanted**2
    least = np.minimum(cap, wanted / LARGEST_WEIGHT)

    def shares(scale: float) -> FloatArray:
        return np.minimum(cap, np.maximum(least, costs * scale))

    if np.count_nonzero(costs) * cap + least[costs == 0].sum() <= 1.0:
        found = shares(np.inf if not (costs == 0).all() else 0.0)  # all that can be
        found = np.where(np.isnan(found), least, found)
    else:
        low, high = 0.0, 1.0 / float(costs[costs > 0].min())
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if shares(middle).sum() < 1.0 else (low, middle)
        found = shares(high)
    rest = 1.0 - found.sum()
    if rest > 0:  # clients without noise take what is left, in proportion to their weight
        room = np.where(wanted > 0, cap - found, 0.0)
        if room.sum() < rest:
            room = cap - found
        found = found + room * (rest / room.sum())
    found = np.minimum(cap, found)
    result: FloatArray = found / found.sum()
    return result


def pooled_weights(
    wanted: FloatArray, drawn: FloatArray, needed: FloatArray
) -> tuple[FloatArray, float]:
    """Factors g_k on mean gradients, and the level of noise that protects all of them.

    Args:
        wanted: w, effective weight of each client in the model.
        drawn: share of all draws that are of each client.
        needed: standard deviation of the noise that protects a client's mean gradient, in units of
            C; 0 for public clients.

    Returns:
        g, 0 for clients that are never drawn, with sum_k drawn_k g_k = 1; and the level, at least
        g_k needed_k for each of them.
    """
    here = drawn > 0
    weights = np.zeros_like(wanted)
    weights[here] = wanted[here] / drawn[here]
    strain = np.where(here, weights * np.nan_to_num(needed), 0.0)
    held = strain > 0
    if not held.any():
        return weights / (drawn @ weights), 0.0
    # Draws are whole numbers: a client drawn more often than planned would need more noise than
    # the others. It speaks more softly instead.
    level = float(np.sqrt((drawn[held] * strain[held] ** 2).sum() / drawn[held].sum()))
    weights[held] *= np.minimum(1.0, level / strain[held])
    total = float(drawn @ weights)
    weights /= total
    return weights, float((weights[here] * np.nan_to_num(needed[here])).max()) * (1 + _ROUNDING)
