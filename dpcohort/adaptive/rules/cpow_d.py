# SPDX-License-Identifier: Apache-2.0
"""Computation-efficient power-of-choice (cpow-d): the candidates' loss on one mini-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpcohort.adaptive.rules.power_of_choice import PowerOfChoice

__all__ = ["MiniBatchPowerOfChoice"]


@dataclass(frozen=True, kw_only=True)
class MiniBatchPowerOfChoice(PowerOfChoice):
    """As power-of-choice, but a candidate looks at one mini-batch instead of all its records.

    Cho, Wang and Joshi, AISTATS 2022, cpow-d (read in the authors' code). The batch is drawn by
    the contract's sampler at the client's rate, independently of any training batch, so the report
    is a subsampled Gaussian event: it costs less than a report on all records at the same noise
    multiplier, and tells less.

    Attributes:
        d: candidates in each round; None asks everybody.
        shrink: as in power-of-choice.

    Example:
        >>> MiniBatchPowerOfChoice(d=10).mini_batch
        True
    """

    name: ClassVar[str] = "cpow-d"
    needs: ClassVar[str] = "the current loss of d clients on one mini-batch each round"
    reference: ClassVar[str] = "cpow-d: Cho et al., AISTATS 2022"
    mini_batch: ClassVar[bool] = True
