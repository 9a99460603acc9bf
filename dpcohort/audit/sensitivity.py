# SPDX-License-Identifier: Apache-2.0
"""Test B: with one seed on two neighbouring data sets, how far apart the updates can get.

The noise cancels exactly, so what is left is what one record did, and the bound is certain: C / B
if a record is replaced by nothing, 2 C / B if by another. No chance is involved, and so no false
alarm.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.audit.claims import Claim, Finding, PrivateTraining

__all__ = ["sensitivity"]

_RECORDS, _BATCH, _DIMENSION, _ROUNDS = 16, 4, 64, 60
_CANARIES = (1e3, 1 + 1e-7, 0.3)  # in units of C
_BACKGROUNDS = (0.0, 1e4)
_TOLERANCE = 1e-5


def sensitivity(training: PrivateTraining, claim: Claim, *, seed: int = 0) -> Finding:
    """Test the influence of one record, over sizes of the record and of its company."""
    rng = np.random.default_rng(seed)
    worst, moved = 0.0, False
    for canary, background in product(_CANARIES, _BACKGROUNDS):
        company = rng.standard_normal((_RECORDS, _DIMENSION)) * background * claim.clip
        direction = rng.standard_normal(_DIMENSION)
        direction *= canary * claim.clip / np.linalg.norm(direction)
        updates = [
            _with_record(training, claim, company, record, seed)
            for record in (direction, np.zeros(_DIMENSION), -direction)
        ]
        for other, bound in ((updates[1], 1.0), (updates[2], 2.0)):
            gap = float(np.linalg.norm(updates[0] - other, axis=2).max())
            # A difference that is not a number is not bounded.
            ratio = gap * _BATCH / (claim.clip * bound)
            worst = max(worst, ratio if np.isfinite(ratio) else np.inf)
            moved = moved or gap > 0
    detail = f"one record moved an update by up to {worst:.6f} of the bound"
    if not moved:
        detail += "; it never took part, so nothing was tested"
    return Finding(
        test="B sensitivity",
        passed=moved and worst <= 1 + _TOLERANCE,
        detail=detail,
        false_alarm_rate=0.0,
    )


def _with_record(
    training: PrivateTraining, claim: Claim, company: FloatArray, record: FloatArray, seed: int
) -> FloatArray:
    gradients = company.copy()
    gradients[0] = record
    return training(
        gradients,
        claim=claim,
        batch_size=_BATCH,
        seed=seed,
        cohorts=np.zeros((_ROUNDS, 1), dtype=np.int64),
    )
