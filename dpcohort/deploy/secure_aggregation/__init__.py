# SPDX-License-Identifier: Apache-2.0
"""Masked sums: a server learns the sum of a cohort's noisy integers and nothing of each.

``masks`` is arithmetic, ``protocol`` who says what to whom and what is refused.
"""

from __future__ import annotations

from dpcohort.deploy.secure_aggregation._protocol import (
    Identity,
    MaskedRound,
    MaskedSum,
    MaskedVector,
    Member,
    cohort_sha256,
)

__all__ = [
    "Identity",
    "MaskedRound",
    "MaskedSum",
    "MaskedVector",
    "Member",
    "cohort_sha256",
]
