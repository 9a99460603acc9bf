# SPDX-License-Identifier: Apache-2.0
"""What the weighted rules share: checked updates, a client's column, and a weighted sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from dpcohort._validate import FloatArray, float_array
from dpcohort.aggregation.cohort import Cohort
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["checked_updates", "client_column", "of_cohort", "weighted_sum"]


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
