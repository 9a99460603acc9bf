# SPDX-License-Identifier: Apache-2.0
"""Test C: how well one record of a huge gradient, a canary, shows in what is released.

Can worlds that differ in one record be told apart better than claimed? One record with a huge
gradient is there or not (or is turned around, for the fixed sampler), with every record used in
each step. Along its direction the updates of the two worlds are normal with means at most
sensitivity C / B apart and standard deviation z C / B. A t statistic then follows a noncentral t
law at most, and too large a value refutes the claim. Black box: nothing is assumed about seeds or
about what happens inside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from dpcohort._validate import FloatArray
from dpcohort.audit._claims import Claim, Finding, PrivateTraining, updates_of

_RECORDS, _DIMENSION = 4, 16
_SIZE = 1e3  # of the record's gradient, in units of C


def canary(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    updates: int = 400,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Test how well the presence of one record shows.

    Args:
        training: what to test.
        claim: what it claims; noise multipliers below 1 see the most.
        seed: seed for the training; the two worlds get different ones.
        updates: number of updates from each world.
        false_alarm_rate: probability that a correct training fails.
    """
    direction = np.zeros(_DIMENSION)
    direction[[0, -1]] = np.sqrt(0.5)

    def projections(sign: float, seed: int) -> FloatArray:
        gradients = np.zeros((_RECORDS, _DIMENSION))
        gradients[0] = sign * _SIZE * claim.clip * direction
        setting: Any = {"batch_size": _RECORDS, "seed": seed, "rounds": updates}
        seen = updates_of(training, gradients, claim, **setting)
        return np.asarray(seen @ direction * _RECORDS / claim.clip)

    present, absent = projections(1.0, 2 * seed), projections(claim.absent, 2 * seed + 1)
    gap = float(present.mean() - absent.mean())
    spread = float(np.sqrt((present.var(ddof=1) + absent.var(ddof=1)) / 2))
    law = stats.nct(
        2 * updates - 2, claim.sensitivity / claim.noise_multiplier * np.sqrt(updates / 2)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.float64(gap) / np.float64(spread * np.sqrt(2 / updates))
    # Not (p >= level), so that no noise at all, an infinite statistic, fails as well.
    p_value = float(law.sf(statistic)) if np.isfinite(statistic) else 0.0
    return Finding(
        test="C canary",
        passed=p_value >= false_alarm_rate,
        detail=f"the worlds are {gap:.3f} C/B apart at a spread of {spread:.3f} C/B "
        f"(claimed: at most {claim.sensitivity:g} at {claim.noise_multiplier:g}), "
        f"p = {p_value:.1e}",
        false_alarm_rate=false_alarm_rate,
    )
