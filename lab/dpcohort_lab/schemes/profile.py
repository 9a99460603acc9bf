# SPDX-License-Identifier: Apache-2.0
"""Composition of mechanisms that are known by their privacy profile alone.

A profile is delta(epsilon), the largest hockey-stick divergence E_gamma, gamma = e^epsilon, over
all pairs of neighbours, in both orders. For symmetric neighbours (replace-one) it is enough to know
it for epsilon >= 0, since delta(-epsilon) = 1 - e^-epsilon + e^-epsilon delta(epsilon). A true
profile is convex in e^epsilon, and every convex profile is that of some dominating pair (Zhu, Dong
and Wang, 2022, general knowledge). So from an upper bound on a grid:

1. the lower convex hull of the points is still an upper bound, because the true profile is convex
   and below every point;
2. between grid points a convex function is below its chords ("connect the dots", arXiv
   2207.04380), which makes a discrete privacy loss distribution;
3. the distribution composes by dp-accounting, pessimistically.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpcohort.accounting import hull_corners
from dpcohort.errors import InputError
from dpcohort_lab.checks import FloatArray

#: delta at each epsilon >= 0, never understated.
Profile = Callable[[FloatArray], FloatArray]

_POINTS = 800
#: dp-accounting's transform leaves noise of about 1e-13 a use in delta.
_ROUNDING_PER_USE = 1e-12


def composed_epsilon_of(
    profile: Profile, *, largest: float, uses: int, delta: float, points: int = _POINTS
) -> float:
    """An upper bound on epsilon after so many uses of mechanisms with this profile.

    Args:
        profile: delta(epsilon) for epsilon >= 0, an upper bound for symmetric neighbours.
        largest: the grid ends here; what is left of delta there counts as an unbounded loss.
        uses: how many, each possibly chosen after seeing the results of the ones before.
        delta: in (0, 1).
        points: grid points above 0.

    Returns:
        epsilon, infinite if the delta left beyond ``largest`` alone is more than ``delta``.

    Example:
        >>> from dpcohort.accounting import gaussian_delta
        >>> profile = lambda epsilon: gaussian_delta(epsilon=epsilon, mu=0.5)
        >>> found = composed_epsilon_of(profile, largest=4.0, uses=4, delta=1e-5)
        >>> 4.377 < found < 4.40
        True
    """
    if uses == 0:
        return 0.0
    if delta < 1e3 * _ROUNDING_PER_USE * uses:
        raise InputError(
            "delta",
            given=delta,
            allowed=f"at least {1e3 * _ROUNDING_PER_USE * uses:g} for {uses} uses",
            next_step="Below it the rounding noise of the transform could show.",
        )
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    step = largest / points
    epsilon = step * np.arange(points + 1, dtype=np.float64)
    upper = lower_hull(np.exp(epsilon), np.clip(profile(epsilon) * (1 + 1e-12), 0.0, 1.0))
    negative = -np.expm1(-epsilon[:0:-1]) + np.exp(-epsilon[:0:-1]) * upper[:0:-1]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
        step,
        np.arange(-points, points + 1),
        np.minimum.accumulate(np.concatenate([negative, upper])),
    )
    loss = privacy_loss_distribution.PrivacyLossDistribution(pmf)
    room = delta - _ROUNDING_PER_USE * uses
    return float(loss.self_compose(uses).get_epsilon_for_delta(room))


def lower_hull(x: FloatArray, y: FloatArray) -> FloatArray:
    """The largest convex function below the points, at the points.

    Example:
        >>> lower_hull(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.9, 0.0]))
        array([1. , 0.5, 0. ])
    """
    kept = hull_corners(x, y)
    return np.asarray(np.interp(x, x[kept], y[kept]), dtype=np.float64)
