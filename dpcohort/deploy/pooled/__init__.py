# SPDX-License-Identifier: Apache-2.0
"""Masked sums: a server learns the sum of a cohort's noisy integers and nothing of each.

``masks`` is arithmetic, ``protocol`` who says what to whom and what is refused.
"""

from __future__ import annotations

from dpcohort.deploy.pooled.protocol import (
    Card,
    Identity,
    MaskedVector,
    Member,
    PooledSum,
    PoolRound,
    cohort_sha256,
)

__all__ = [
    "Card",
    "Identity",
    "MaskedVector",
    "Member",
    "PoolRound",
    "PooledSum",
    "cohort_sha256",
]
