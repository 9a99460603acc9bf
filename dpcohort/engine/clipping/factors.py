# SPDX-License-Identifier: Apache-2.0
"""From the norm of a record's gradient to the factor that clips it (Algorithm 1, line 15).

The factor is min(1, C (1 - 1e-5) / norm): in 32-bit arithmetic the norm and the sum it scales
round differently, and the slack keeps what a record contributes at or below C nevertheless.
A record whose gradient is not finite gets factor 0: it contributes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["CLIP_SLACK", "clip_factors"]

CLIP_SLACK = 1e-5


def clip_factors(squared_norms: Tensor, clip: Tensor | float) -> Tensor:
    """Factors in [0, 1] for gradients of these squared norms.

    Args:
        squared_norms: squared norm of each record's whole gradient, at least 32-bit.
        clip: C, one number or one for each record.

    Example:
        >>> clip_factors(torch.tensor([0.0, 0.25, 4.0, float("nan")]), 1.0).tolist()
        [1.0, 1.0, 0.49999..., 0.0]
    """
    factors = (clip * (1 - CLIP_SLACK) / squared_norms.sqrt()).clamp(max=1.0)
    return torch.where(torch.isfinite(squared_norms), factors, torch.zeros_like(factors))
