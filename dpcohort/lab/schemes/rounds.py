# SPDX-License-Identifier: Apache-2.0
"""The loop that every scheme shares: a round's noisy update, then the server's free work.

Server step size, momentum and the average of iterates are those of the configuration and the same
for all schemes; they are post-processing and cost no privacy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.engine import EngineState
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.receipt import Outcome, SchemeReceipt

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["ClientUpdate", "RoundUpdate", "mean_of_cohort", "participations", "train_rounds"]

#: (round, model) -> (update to subtract, noise std in it per coordinate); None ends the training.
RoundUpdate = Callable[[int, "Tensor"], "tuple[Tensor, float] | None"]

#: (round, client, model) -> (its noisy update, noise std in it per coordinate).
ClientUpdate = Callable[[int, int, "Tensor"], "tuple[Tensor, float]"]


def train_rounds(
    federation: Federation,
    update: RoundUpdate,
    *,
    card: Card,
    mode: Mode,
    receipts: Callable[[], Sequence[SchemeReceipt]],
    notes: Callable[[], Sequence[str]] = tuple,
) -> Outcome:
    """Train as many rounds as the federation is configured for, or until ``update`` says stop.

    Args:
        federation: clients, data, model.
        update: what a round of the scheme releases.
        card: the scheme.
        mode: its mode.
        receipts: asked after the training, when it is known what was spent.
        notes: asked after the training.
    """
    started = time.perf_counter()
    state = EngineState(federation.initial())
    squares: list[float] = []
    for t in range(federation.training.rounds):
        found = update(t, state.parameters)
        if found is None:
            break
        step, noise_std = found
        squares.append((noise_std * federation.server_rate) ** 2)
        federation.optimiser.apply(state, step)
    final = state.parameters if state.average is None else state.average
    test = federation.evaluate(final)
    return Outcome(
        card=card,
        mode=mode,
        accuracy=test.accuracy,
        loss=test.loss,
        rounds=len(squares),
        noise_std=math.sqrt(sum(squares) / len(squares)) if squares else 0.0,
        receipts=tuple(receipts()),
        notes=tuple(notes()),
        seconds=time.perf_counter() - started,
    )


def mean_of_cohort(
    federation: Federation, cohorts: Sequence[IntArray], update: ClientUpdate
) -> RoundUpdate:
    """A round in which the server sees each cohort member's noisy update and takes their mean."""

    def combined(t: int, weights: Tensor) -> tuple[Tensor, float]:
        cohort = cohorts[t]
        if cohort.size == 0:
            return weights.new_zeros(weights.shape), 0.0
        updates, stds = zip(*(update(t, int(k), weights) for k in cohort), strict=True)
        total = updates[0].clone()
        for other in updates[1:]:
            total += other
        noise = math.sqrt(sum(std**2 for std in stds)) / len(stds)
        return total / len(updates), noise

    return combined


def participations(cohorts: Sequence[IntArray], clients: int) -> IntArray:
    """How often each client is in a cohort.

    Example:
        >>> participations([np.array([0, 2]), np.array([2])], 3).tolist()
        [1, 0, 2]
    """
    if not cohorts:
        return np.zeros(clients, dtype=np.int64)
    return np.bincount(np.concatenate(cohorts), minlength=clients).astype(np.int64)
