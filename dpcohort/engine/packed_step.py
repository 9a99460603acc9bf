# SPDX-License-Identifier: Apache-2.0
"""What the host tells an accelerator about one local step of a pass, in one piece of memory.

Many small copies to a device cost more than the step itself; one copy of everything does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import IntArray
from dpcohort.engine.randomness import WordArray
from dpcohort.engine.sampling import pad_batches

__all__ = ["PackedStep", "SlotStep", "pack"]

_COLUMNS = 6  # words a slot besides its rows


@dataclass(frozen=True)
class SlotStep:
    """One local step of one slot.

    Attributes:
        rows: stored rows of the batch.
        noise_name: two words that name the noise.
        scale: factor on the sum of clipped gradients, alpha / B.
        spread: factor on the standard normal noise, alpha z C / B.
        clip: C.
    """

    rows: IntArray
    noise_name: WordArray
    scale: float
    spread: float
    clip: float


@dataclass(frozen=True)
class PackedStep:
    """A step of all slots of a pass as one vector of 64-bit words.

    Attributes:
        words: rows [slots, width], then counts, two words of noise names, scale, spread and clip
            for each slot.
        slots: number of slots.
        width: width of the batches, padding included.
        is_full: whether no batch is padded.
    """

    words: Tensor
    slots: int
    width: int
    is_full: bool

    def moved_to(self, words: Tensor) -> PackedStep:
        """The same step in other memory of the same shape; the copy does not wait."""
        words.copy_(self.words, non_blocking=True)
        return PackedStep(words, self.slots, self.width, self.is_full)

    @property
    def rows(self) -> Tensor:
        """[slots x width] stored rows; row 0 where a batch is padded."""
        return self.words[: self.slots * self.width]

    @property
    def mask(self) -> Tensor | None:
        """[slots, width], true for rows that belong to a batch; None if all do."""
        if self.is_full:
            return None
        places = torch.arange(self.width, device=self.words.device)
        return places < self._column(0)[:, None]

    @property
    def noise_names(self) -> Tensor:
        """[slots, 2]."""
        start = self.slots * (self.width + 1)
        return self.words[start : start + 2 * self.slots].view(self.slots, 2)

    @property
    def scale(self) -> Tensor:
        """[slots] in 64 bits."""
        return self._column(3).view(torch.float64)

    @property
    def spread(self) -> Tensor:
        """[slots] in 64 bits."""
        return self._column(4).view(torch.float64)

    @property
    def clip(self) -> Tensor:
        """[slots] in 64 bits."""
        return self._column(5).view(torch.float64)

    def _column(self, number: int) -> Tensor:
        start = self.slots * (self.width + number)
        return self.words[start : start + self.slots]


def pack(steps: Sequence[SlotStep], *, multiple: int, pinned: bool) -> PackedStep:
    """One vector from the steps of all slots of a pass.

    Args:
        steps: one for each slot.
        multiple: the width of the batches is rounded up to a multiple of this.
        pinned: in memory from which a device copies without the host.

    Example:
        >>> name = np.array([3, 4], dtype=np.uint64)
        >>> step = SlotStep(np.array([7, 9]), name, scale=0.5, spread=2.0, clip=1.0)
        >>> packed = pack([step], multiple=4, pinned=False)
        >>> packed.rows.tolist(), packed.mask.tolist(), packed.scale.tolist()
        ([7, 9, 0, 0], [[True, True, False, False]], [0.5])
    """
    padded = pad_batches([step.rows for step in steps], multiple=multiple)
    slots, width = padded.positions.shape
    words = torch.empty(slots * (width + _COLUMNS), dtype=torch.int64, pin_memory=pinned)
    flat = words.numpy()
    flat[: slots * width] = padded.positions.reshape(-1)
    columns = flat[slots * width :].reshape(_COLUMNS, slots)
    columns[0] = [step.rows.size for step in steps]
    columns[1:3] = np.array([step.noise_name for step in steps]).astype(np.int64).reshape(2, slots)
    reals = columns[3:].view(np.float64)
    reals[0] = [step.scale for step in steps]
    reals[1] = [step.spread for step in steps]
    reals[2] = [step.clip for step in steps]
    return PackedStep(words, slots, width, bool(padded.mask.all()))
