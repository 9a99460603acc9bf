# SPDX-License-Identifier: Apache-2.0
"""From the norm of a record's gradient to the factor that clips it (Algorithm 1, line 15).

The factor is min(1, C (1 - 1e-5) / norm): in 32-bit arithmetic the norm and the sum it scales
round differently, and the slack keeps what a record contributes at or below C nevertheless.
A record whose gradient is not finite gets factor 0: it contributes nothing.

``clip_rows`` is for gradients that are there, one a row. Whatever a row holds, what comes of it has
norm at most C: squares that a float does not hold are taken again in float64.

A record's clipped contribution is at most C because its norm and the sum it enters are computed
from the same numbers a (inputs of a layer) and g (gradients of its outputs), to within the slack.
TF32 keeps 10 bits of a factor: in the products that make norms and sums, one rounding in the norm
and another in the sum would differ by more than the slack, and a record could count for more than
C. Those products are therefore never TF32, whatever torch was told (``full_precision_products``).
The products that make a and g themselves are another matter: however they are rounded, a record's
a and g depend on that record and the weights alone, and what is clipped is the gradient they give.
Convolutions forward and backward therefore keep torch's own setting
(``torch.backends.cudnn.allow_tf32``, true unless somebody changes it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["CLIP_SLACK", "clip_factors", "clip_rows", "full_precision_products"]

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


def clip_rows(gradients: Tensor, clip: Tensor | float) -> tuple[Tensor, Tensor]:
    """Factors [rows], and the rows they go with; each product has norm at most C.

    Args:
        gradients: [rows, D], each the gradient of one record.
        clip: C.

    Returns:
        Factors and rows. A row whose squared norm is in doubt comes clipped already, with factor 1;
        one that is not finite comes as zeros, with factor 0.

    Example:
        >>> rows = torch.tensor([[3.0, 4.0], [3e30, 4e30], [float("inf"), 0.0]])
        >>> factors, rows = clip_rows(rows, 1.0)
        >>> [[round(x, 3) for x in row] for row in (factors[:, None] * rows).tolist()]
        [[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]
    """
    squares = gradients.square().sum(1)
    factors = clip_factors(squares, clip)
    limits = torch.finfo(squares.dtype)
    low, high = limits.tiny / limits.eps, limits.max * limits.eps
    doubtful = ~((squares >= low) & (squares <= high))
    if not bool(doubtful.any()):
        return factors, gradients
    rows = gradients[doubtful].double()
    # Scaled by its largest entry, no square of a row is too large or too small for float64.
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    sizes = torch.minimum(largest * norms, torch.as_tensor(clip).double() * (1 - CLIP_SLACK))
    rows = rows * (sizes / torch.where(norms > 0, norms, 1.0))
    finite = torch.isfinite(rows).all(1)
    rows = torch.where(finite[:, None], rows, 0.0).to(gradients.dtype)
    clipped = gradients.clone()
    clipped[doubtful] = rows
    factors[doubtful] = finite.to(factors.dtype)
    return factors, clipped


@contextmanager
def full_precision_products(device: torch.device) -> Iterator[None]:
    """Matrix products in all 24 bits of a float meanwhile.

    Example:
        >>> with full_precision_products(torch.device("cpu")):
        ...     torch.ones(1, 1) @ torch.ones(1, 1)
        tensor([[1.]])
    """
    if device.type != "cuda" or not torch.backends.cuda.matmul.allow_tf32:
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = True
