# SPDX-License-Identifier: Apache-2.0
"""What an aggregation rule is: noisy updates of a cohort in, one update out.

A rule sees what the server sees: updates that already carry their noise, and public facts about
the draws. Whatever it computes is post-processing and costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, IntArray, float_array
from dpcohort.errors import InputError
from dpcohort.plugins import full_name, is_foreign, naming_the_rule

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "AggregationRule",
    "Cohort",
    "RememberingRule",
    "checked_updates",
    "client_column",
    "combine_round",
    "of_cohort",
    "weighted_sum",
]


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


def checked_updates(updates: Tensor, cohort: Cohort) -> Tensor:
    """The updates, if there is one row for each draw and every entry is finite.

    An update that is not finite has left the arithmetic, or its sender does not follow the
    protocol. Sorting or projecting would hide it, so it is refused and its sender named. The check
    reads noisy updates only.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(1)
        >>> cohort = Cohort(round=4, clients=np.array([7]), draws=np.array([0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1]), noise_stds=one)
        >>> checked_updates(torch.tensor([[float("nan")]]), cohort)
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: the update of client 7 (draw 0) in round 4 is not finite; ...
    """
    import torch

    if updates.ndim != 2 or updates.shape[0] != len(cohort) or len(cohort) == 0:
        raise InputError(
            "shape of updates",
            given=tuple(updates.shape),
            allowed=f"({max(len(cohort), 1)}, D), a row for each draw of a cohort that has any",
        )
    finite = torch.isfinite(updates).all(1)
    if not bool(finite.all()):
        row = int(torch.nonzero(~finite)[0])
        raise InputError.because(
            f"the update of client {int(cohort.clients[row])} (draw {int(cohort.draws[row])}) in "
            f"round {cohort.round} is not finite; lower the step size, or leave the client out."
        )
    return updates


def client_column(
    field: str, values: ArrayLike, *, above: float | None = None, at_least: float | None = None
) -> FloatArray:
    """One number for each client of the population, copied and closed to writing.

    Example:
        >>> client_column("sizes", [60, 20], above=0)
        array([60., 20.])
    """
    column = float_array(field, values, above=above, at_least=at_least)
    if column.ndim != 1 or column.size == 0:
        raise InputError(
            f"shape of {field}", given=column.shape, allowed="(N,), a number for each client"
        )
    column = column.copy()
    column.setflags(write=False)
    return column


def of_cohort(field: str, column: FloatArray, cohort: Cohort) -> FloatArray:
    """The column's entry for each draw.

    Raises:
        InputError: a draw of a client that the column does not reach.

    Example:
        >>> import numpy as np
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([2, 0]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> of_cohort("sizes", np.array([10.0, 20.0, 30.0]), cohort)
        array([30., 10.])
    """
    if int(cohort.clients.max()) >= column.size:
        raise InputError(
            f"length of {field}",
            given=column.size,
            allowed=f"that of the population, in which client {int(cohort.clients.max())} is drawn",
        )
    return column[cohort.clients]


def weighted_sum(updates: Tensor, weights: FloatArray) -> Tensor:
    """``sum_i w_i x_i`` over the rows, in the updates' precision and on their device.

    Example:
        >>> import numpy as np, torch
        >>> weighted_sum(torch.tensor([[1.0], [3.0]]), np.array([0.5, 0.5]))
        tensor([2.])
    """
    import torch

    return torch.as_tensor(weights, dtype=updates.dtype, device=updates.device) @ updates
