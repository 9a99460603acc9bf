# SPDX-License-Identifier: Apache-2.0
"""One noise vector a round in place of one for each draw, where only the mean of the draws counts.

The noise of a draw's *last* local step enters nothing but its update: no gradient is taken after
it. Under the plain mean of M draws those noises enter the model as

    1/M sum_i alpha sigma_i n_i,    n_i independent and standard normal,

and that has the very law of ``s n`` with one standard normal n and s = sqrt(sum_i (alpha
sigma_i)^2) / M. Drawing n instead of the n_i saves M - 1 normal vectors a round and changes nothing
that anybody sees who sees the models only. The earlier steps of a draw keep noise of their own,
because gradients are taken behind it.

It is for simulation. Whoever sees single updates, as the server of a deployment does, would see
them without the noise of their last step: the switch is therefore refused where streams cannot be
drawn again, and with every rule but the plain mean. What is accounted for is the same mechanism, so
plans, ledgers and receipts stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import FloatArray
from dpcohort.aggregation import AggregationRule, Cohort, Mean
from dpcohort.aggregation.weighted import sum_of_rows
from dpcohort.engine.randomness import Streams
from dpcohort.engine.rounds import Optimiser
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from dpcohort.engine.experiment import TrainingPlan

__all__ = ["MergedMean", "add_merged_noise_", "merged_noise_", "merged_std", "refuse_unmergeable"]


def merged_std(noise_stds: FloatArray, step_size: float) -> float:
    """Standard deviation of the noise on a round's mean, sqrt(sum_i (alpha sigma_i)^2) / M.

    Args:
        noise_stds: sigma_i = z C / B of each draw.
        step_size: alpha of the last local step; all draws of a round take the same.

    Example:
        >>> merged_std(np.array([3.0, 4.0]), 0.1)
        0.25
    """
    return float(step_size * np.linalg.norm(noise_stds) / noise_stds.size)


def add_merged_noise_(
    mean: Tensor, cohort: Cohort, plan: TrainingPlan, optimiser: Optimiser, streams: Streams
) -> Tensor:
    """Add to the mean of a cohort's updates the noise that their last local steps left out.

    The stream is named by seed, purpose and round, and its purpose is its own: it never coincides
    with the noise of a draw.

    Args:
        mean: [D], changed in place.
        cohort: the draws of the round.
        plan: how many local steps there are.
        optimiser: their step sizes.
        streams: where the noise comes from.

    Returns:
        The mean.
    """
    last = plan.training.local_steps - 1
    std = merged_std(cohort.noise_stds, optimiser.step_size(plan, round=cohort.round, step=last))
    if std == 0.0:  # public clients only
        return mean
    noise = merged_noise_(torch.empty_like(mean), streams, round=cohort.round)
    return mean.add_(noise, alpha=std)


@dataclass(frozen=True, eq=False)
class MergedMean:
    """The plain mean of updates that lack the noise of their last step, and that noise once."""

    plan: TrainingPlan
    optimiser: Optimiser
    streams: Streams

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean, with its noise."""
        # On an accelerator the sum may be of other rows than the draws: see the engine's draws.
        mean = sum_of_rows(updates).div_(len(cohort))
        return add_merged_noise_(mean, cohort, self.plan, self.optimiser, self.streams)


def merged_noise_(out: Tensor, streams: Streams, *, round: int) -> Tensor:
    """Fill ``out`` with the standard normal noise of a round.

    Example:
        >>> noise = merged_noise_(torch.empty(3), Streams.seeded(0), round=0)
        >>> torch.equal(noise, merged_noise_(torch.empty(3), Streams.seeded(0), round=1))
        False
    """
    return streams.normal_(out, purpose="merged noise", round=round, client=0)


def refuse_unmergeable(streams: Streams, aggregation: AggregationRule) -> None:
    """Raise unless this is a simulation of the plain mean.

    Example:
        >>> refuse_unmergeable(Streams.seeded(0), Mean())
        >>> refuse_unmergeable(Streams.from_entropy(), Mean())
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: merged_noise is for simulation: ...
    """
    if not streams.is_reproducible:
        raise InputError.because(
            "merged_noise is for simulation: updates would carry no noise of their last step, and "
            "streams from entropy are there to protect somebody. Leave it off, or use a seed."
        )
    # A subclass, or a rule around the mean, may look at single updates.
    if type(aggregation) is not Mean:
        raise InputError.because(
            f"merged_noise goes with the plain mean only; {type(aggregation).__name__} looks at "
            "single updates, which would carry no noise of their last step. Leave it off."
        )
