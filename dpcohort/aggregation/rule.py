# SPDX-License-Identifier: Apache-2.0
"""What an aggregation rule is: noisy updates of a cohort in, one update out.

A rule sees what the server sees: updates that already carry their noise, and public facts about
the draws. Whatever it computes is post-processing and costs no privacy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dpcohort.aggregation.cohort import Cohort
from dpcohort.errors import InputError
from dpcohort.foreign_rule import full_name, is_foreign, naming_the_rule

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AggregationRule", "RememberingRule", "combine_round"]


class AggregationRule(Protocol):
    """Combines the updates of one round."""

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """One update [D] from the updates [draws, D] of the cohort's draws, in their order.

        The updates are the engine's memory: a rule that wants to keep some must copy them.
        """
        ...


@runtime_checkable
class RememberingRule(Protocol):
    """A rule that carries something from round to round, beside ``combine``.

    What it remembers is part of the training's state: it is kept in checkpoints, so that a resumed
    training goes on with it. It must be computed from noisy updates and public facts only.
    """

    def combine_remembering(
        self, updates: Tensor, cohort: Cohort, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """One update, and what to remember: rows of the length of an update, or None.

        ``memory`` is what the round before returned; None before the first round.
        """
        ...


def combine_round(
    rule: AggregationRule, updates: Tensor, cohort: Cohort, memory: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """A round's combined update, and what the rule remembers after it.

    Raises:
        InputError: somebody's own rule failed, or gave back no update; names the rule.

    Example:
        >>> import numpy as np, torch
        >>> from dpcohort.aggregation import Mean
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> combine_round(Mean(), torch.tensor([[1.0], [3.0]]), cohort, None)
        (tensor([2.]), None)
    """
    remembers = isinstance(rule, RememberingRule)
    with naming_the_rule(rule, "combine_remembering" if remembers else "combine"):
        if isinstance(rule, RememberingRule):
            update, memory = rule.combine_remembering(updates, cohort, memory)
        else:
            update, memory = rule.combine(updates, cohort), None
    if is_foreign(rule):
        _check_update(rule, update, updates)
    return update, memory


def _check_update(rule: AggregationRule, update: object, updates: Tensor) -> None:
    """Refuse what is no update before it reaches the model."""
    import torch

    name = full_name(rule)
    if not isinstance(update, torch.Tensor) or update.shape != updates.shape[1:]:
        given = tuple(update.shape) if isinstance(update, torch.Tensor) else type(update).__name__
        raise InputError(
            f"what the aggregation {name} gives back",
            given=given,
            allowed=f"a tensor of shape {tuple(updates.shape[1:])}",
        )
    if not bool(torch.isfinite(update).all()) and bool(torch.isfinite(updates).all()):
        raise InputError.because(
            f"the aggregation {name} made numbers that are not finite from updates that are."
        )
