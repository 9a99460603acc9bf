# SPDX-License-Identifier: Apache-2.0
"""Memory that a network writes over again and again, so that it stays in a processor's cache.

Fresh memory for every intermediate result would come from wherever the allocator finds it, mostly
from outside of the cache; for a small network that costs more than the arithmetic.
"""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["Scratch"]


class Scratch:
    """Pieces of memory by name. Who asks for a name again gets the same piece, whatever is in it.

    What a pass left in it means nothing afterwards: nobody may read what they have not written.
    SENSITIVE all the same, as all memory of the process: numbers of the last examples lie in it
    until they are written over. It is for one thread.

    Example:
        >>> import torch
        >>> scratch = Scratch()
        >>> first = scratch.piece("sums", (2, 3), torch.zeros(1))
        >>> again = scratch.piece("sums", (4,), torch.zeros(1))
        >>> tuple(again.shape), first.data_ptr() == again.data_ptr()
        ((4,), True)
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def piece(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory of this shape, of the type and on the device of ``like``."""
        size = math.prod(shape)
        kept = self._kept.get(name)
        fits = kept is not None and (kept.dtype, kept.device) == (like.dtype, like.device)
        if kept is None or not fits or kept.numel() < size:
            kept = like.new_empty(size)
            self._kept[name] = kept
        return kept[:size].view(shape)
