# SPDX-License-Identifier: Apache-2.0
"""The Gaussian noise of one local step (Algorithm 1, line 17).

z is the noise multiplier: the noise on the *sum* of clipped gradients has standard deviation z C
in every coordinate, so on the mean it is sigma_k = z C / B. Every step of every draw has noise of
its own, an empty batch too. Public clients have z = 0 and add none.

The noise is floating-point, made for simulation: the proofs are about real numbers, and the bits
of a float can tell more (Mironov, 2012). A deployment must put its noise on a lattice.
"""

from __future__ import annotations

from typing import overload

from torch import Tensor

from dpcohort._validate import FloatArray, IntArray
from dpcohort.engine.randomness import Streams

__all__ = ["noise_std", "standard_noise_"]


@overload
def noise_std(noise_multiplier: float, clip: float, batch_size: int) -> float: ...
@overload
def noise_std(noise_multiplier: FloatArray, clip: float, batch_size: IntArray) -> FloatArray: ...
def noise_std(
    noise_multiplier: float | FloatArray, clip: float, batch_size: int | IntArray
) -> float | FloatArray:
    """Standard deviation of the noise on the mean gradient, sigma_k = z C / B.

    Example:
        >>> noise_std(2.0, 0.5, 10)
        0.1
    """
    return noise_multiplier * clip / batch_size


def standard_noise_(
    out: Tensor, streams: Streams, *, round: int, client: int, draw: int, step: int
) -> Tensor:
    """Fill ``out`` with the standard normal noise of one local step of one draw.

    Example:
        >>> import torch
        >>> noise = standard_noise_(torch.empty(3), Streams.seeded(0),
        ...                         round=0, client=0, draw=0, step=0)
        >>> bool(torch.isfinite(noise).all())
        True
    """
    return streams.normal_(out, round=round, client=client, draw=draw, step=step)
