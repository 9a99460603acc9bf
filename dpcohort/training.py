# SPDX-License-Identifier: Apache-2.0
"""The training settings a plan needs: how long, how many, how large, how tightly clipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpcohort._validate import choice, number, whole_number
from dpcohort.errors import InputError
from dpcohort.limits import MOST_DRAWS, MOST_LOCAL_STEPS

__all__ = ["LARGEST_STEP", "EngineName", "Training"]

#: Who computes updates on this machine; ``train_job`` has the classes.
EngineName = Literal["batched", "reference"]

#: Step sizes beyond this have no place in the 32 bits of a model's numbers.
LARGEST_STEP = 1e30

#: Parameters of the MNIST network of the paper, the default D.
MNIST_CNN_PARAMETERS = 26_010


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is decided about training before anyone is selected.

    Attributes:
        rounds: global rounds, T^g.
        cohort_size: draws in each round, N^select.
        local_steps: local steps of each draw, T^l.
        batch_size: expected batch of a client that names none itself, B; exclusive with
            ``sampling_rate``.
        sampling_rate: share of its records a client uses in a step, r; the batch is then
            r times the size, rounded, at least 1.
        oversized_batch: what to do with a client smaller than ``batch_size``: ``error``, or
            ``whole`` to let it use all its records in each step (rate 1).
        clip: norm to which each record's gradient is clipped, C.
        dimension: number of trained parameters, D.
        smoothness: Lipschitz constant of the gradient, L; only ``eta = "auto"`` and the bounds
            use it.

    Example:
        >>> Training(rounds=100, local_steps=2).total_steps
        200
    """

    rounds: int = 100
    cohort_size: int = 10
    local_steps: int = 1
    batch_size: int | None = None
    sampling_rate: float | None = None
    oversized_batch: Literal["error", "whole"] = "error"
    clip: float = 1.0
    dimension: int = MNIST_CNN_PARAMETERS
    smoothness: float = 1.0

    def __post_init__(self) -> None:
        for field in ("rounds", "cohort_size", "local_steps", "dimension"):
            value = whole_number(field, getattr(self, field), at_least=1)
            object.__setattr__(self, field, value)
        whole_number("local_steps", self.local_steps, at_most=MOST_LOCAL_STEPS)
        if self.total_draws > MOST_DRAWS:
            raise InputError(
                "rounds * cohort_size",
                given=self.total_draws,
                allowed=f"at most {MOST_DRAWS} draws, which a schedule can hold",
            )
        for field in ("clip", "smoothness"):
            object.__setattr__(self, field, number(field, getattr(self, field), above=0))
        choice("oversized_batch", self.oversized_batch, ["error", "whole"])
        if self.batch_size is not None and self.sampling_rate is not None:
            raise InputError.because(
                "batch_size and sampling_rate are both given; keep one: a batch_size makes each "
                "client's rate batch_size / size, a sampling_rate makes its batch rate * size."
            )
        if self.sampling_rate is not None:
            rate = number("sampling_rate", self.sampling_rate, above=0, at_most=1)
            object.__setattr__(self, "sampling_rate", rate)
        if self.batch_size is not None:
            batch = whole_number("batch_size", self.batch_size, at_least=1)
            object.__setattr__(self, "batch_size", batch)

    @property
    def total_steps(self) -> int:
        """T = T^g T^l."""
        return self.rounds * self.local_steps

    @property
    def total_draws(self) -> int:
        """Draws over the whole training, n = T^g N^select."""
        return self.rounds * self.cohort_size
