# SPDX-License-Identifier: Apache-2.0
"""What the server knows about the draws of one round, all of it public."""

from __future__ import annotations

from dataclasses import dataclass

from dpcohort._validate import FloatArray, IntArray

__all__ = ["Cohort"]


@dataclass(frozen=True)
class Cohort:
    """The draws of one round, everything in it public.

    Attributes:
        round: global round t^g.
        clients: client position of each draw.
        draws: which of that client's draws in this round each one is: 0, 1, ...
        noise_multipliers: z of each draw.
        batch_sizes: B of each draw.
        noise_stds: z C / B of each draw, the noise on its mean gradient in one local step.
    """

    round: int
    clients: IntArray
    draws: IntArray
    noise_multipliers: FloatArray
    batch_sizes: IntArray
    noise_stds: FloatArray

    def __len__(self) -> int:
        return int(self.clients.size)
