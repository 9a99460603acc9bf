# SPDX-License-Identifier: Apache-2.0
"""Test E: which records a step uses follows the claimed sampler.

Each record's gradient is a direction of its own, and the noise is small, so that an update shows
which records are in it. Checked: a record counts once, how many records are used in all and how
often each, how the size of a batch varies (not at all for the fixed sampler), and that a batch says
nothing about the next one, be it of another round or of a second draw in the same round. Where the
steps of a draw are drawn together, a draw with a step for every bin uses each record once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from dpcohort._validate import FloatArray
from dpcohort.audit._claims import Claim, Finding, PrivateTraining

_RECORDS, _BATCH, _ROUNDS, _DRAWS = 200, 40, 200, 2
_SMALL_NOISE = 1e-3


def sampler(
    training: PrivateTraining, claim: Claim, *, seed: int = 0, false_alarm_rate: float = 1e-7
) -> Finding:
    """Test the batches; the noise multiplier is set to 1/1000 meanwhile."""
    updates = training(
        np.eye(_RECORDS) * claim.clip,
        claim=replace(claim, noise_multiplier=_SMALL_NOISE),
        batch_size=_BATCH,
        seed=seed,
        cohorts=np.zeros((_ROUNDS, _DRAWS), dtype=np.int64),
    )
    counts = updates.reshape(_ROUNDS * _DRAWS, _RECORDS) * _BATCH / claim.clip
    used = (counts > 0.5).astype(np.float64)
    problems = []
    if not np.all(np.abs(counts - used) < 0.1):
        problems.append("a record counts otherwise than once or not at all")
    level, rate = false_alarm_rate / 4, _BATCH / _RECORDS
    constant = claim.sampler.has_constant_batches
    batches, uses = used.sum(1), used.sum(0)
    if constant and not np.all(batches == _BATCH):
        problems.append("a batch does not have B records")
    if not constant and _two_sided(stats.binom(used.size, rate), np.array([used.sum()])) < level:
        problems.append("wrong number of records in all")
    if _two_sided(stats.binom(len(batches), rate), uses) < level:
        problems.append("a record is used too often or too rarely")
    # Batch sizes have the binomial variance.
    squares = np.sum((batches - _BATCH) ** 2) / (_RECORDS * rate * (1 - rate))
    law = stats.chi2(len(batches))
    if not constant and 2 * min(law.cdf(squares), law.sf(squares)) < level:
        problems.append("batch sizes vary too little or too much")
    problems += _memory(used, level, constant=constant)
    if claim.sampler.is_joint:
        problems += _epochs(training, claim, seed)
    return Finding(
        test="E sampler",
        passed=not problems,
        detail=f"{used.mean():.4f} of the records used (claimed {_BATCH / _RECORDS:.4f}), "
        f"batches of {batches.min():.0f} to {batches.max():.0f}"
        + "".join(f"; {problem}" for problem in problems),
        false_alarm_rate=false_alarm_rate,
    )


def _epochs(training: PrivateTraining, claim: Claim, seed: int) -> list[str]:
    updates = training(
        np.eye(_RECORDS) * claim.clip,
        claim=replace(claim, noise_multiplier=_SMALL_NOISE),
        batch_size=_BATCH,
        seed=seed,
        cohorts=np.zeros((4, _DRAWS), dtype=np.int64),
        local_steps=_RECORDS // _BATCH,
    )
    is_once = np.all(np.abs(updates * _BATCH / claim.clip - 1) < 0.1)
    return [] if is_once else ["the steps of a draw do not use every record once"]


def _two_sided(law: Any, seen: FloatArray) -> float:
    """Probability of a count as far out as the farthest of these, at most."""
    lower, upper = law.cdf(seen), law.sf(seen - 1)
    return 2 * float(np.minimum(lower, upper).min()) * seen.size


def _memory(used: FloatArray, level: float, *, constant: bool) -> list[str]:
    """Neighbouring batches are uncorrelated; the sum over records and pairs is near normal."""
    rate = _BATCH / _RECORDS
    centred = used - rate
    variance = (rate * (1 - rate)) ** 2 * _RECORDS
    if constant:  # B of n without replacement: the entries of a batch add up to zero
        variance *= _RECORDS / (_RECORDS - 1)
    for lag in (1, 2):
        products = centred[lag:] * centred[:-lag]
        score = abs(float(products.sum())) / np.sqrt(variance * len(products))
        if 2 * stats.norm.sf(score) < level / 2:
            return [f"batches {lag} apart are not independent"]
    return []
