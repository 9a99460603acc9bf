# SPDX-License-Identifier: Apache-2.0
"""Torch's randomness borrowed for a while and given back unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's CPU randomness from this seed for a while; afterwards it is as it was before.

    Only the CPU generator is seeded: ``torch.manual_seed`` would also reset those of the GPUs.

    Example:
        >>> with seeded(7):
        ...     first = torch.rand(1)
        >>> with seeded(7):
        ...     bool(torch.rand(1) == first)
        True
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
