# SPDX-License-Identifier: Apache-2.0
"""Which products may be rounded to fewer bits, and which must not.

A record's clipped contribution is at most C because its norm and the sum it enters are computed
from the same numbers a (inputs of a layer) and g (gradients of its outputs), to within the slack of
``factors``. TF32 keeps 10 bits of a factor: in the products that make norms and sums, one rounding
in the norm and another in the sum would differ by more than the slack, and a record could count for
more than C. Those products are therefore never TF32, whatever torch was told.

The products that make a and g themselves are another matter: however they are rounded, a record's
a and g depend on that record and the weights alone, and what is clipped is the gradient they give.
Convolutions forward and backward therefore keep torch's own setting
(``torch.backends.cudnn.allow_tf32``, true unless somebody changes it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["full_precision_products"]


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
