# SPDX-License-Identifier: Apache-2.0
"""Who names the cohort of each round: the plan's schedule, or an adaptive rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive.rule import AdaptiveRule, rule_cohort
from dpcohort.plan import Plan
from dpcohort.runs.journal import Journal

__all__ = ["Ask", "Chooser", "RuleChooser", "ScheduleChooser"]

#: Gets noised reports of clients on a model, in a round, by position; some may not come.
Ask = Callable[[int, list[int], Tensor], Mapping[int, float]]

#: Numbers kept of an update; shorter updates are kept whole.
_WIDTH = 512
_NAME = "adaptive.update."


class Chooser(Protocol):
    """Names each round's cohort; what it was told is all it knows."""

    def cohort(self, round: int, parameters: Tensor) -> IntArray:
        """The draws of a round, as positions of clients, for clients that get these parameters."""
        ...

    def saw(self, clients: IntArray, updates: Tensor) -> None:
        """Be told the noisy updates of a round, one row a draw."""
        ...

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """What a checkpoint must hold of it."""
        ...


class ScheduleChooser:
    """The cohorts of a fixed plan."""

    def __init__(self, plan: Plan) -> None:
        self._cohorts = plan.schedule.cohorts

    def cohort(self, round: int, parameters: Tensor) -> IntArray:
        """What the schedule says."""
        return np.asarray(self._cohorts[round])

    def saw(self, clients: IntArray, updates: Tensor) -> None:
        """Nothing depends on updates."""

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Nothing."""
        return {}


class RuleChooser:
    """An adaptive rule, with its charged reports and what it may know of updates.

    Updates carry their noise when the server sees them, so to look at them is post-processing and
    free. For rules that do, a sketch of each client's last update is kept: every coordinate is
    added, with a random sign, to one of a few hundred cells; signs and cells are public. Inner
    products of sketches are those of the updates in the mean (count sketch, Charikar et al., 2002).

    Args:
        rule: what decides.
        journal: what was reported and drawn.
        ask: gets reports, which are counted before.
        repeats: whether a report that a crash left unanswered is made again as the very same one.
        arrays: of the checkpoint that a run goes on from.
    """

    def __init__(
        self,
        rule: AdaptiveRule,
        journal: Journal,
        ask: Ask,
        *,
        repeats: bool,
        arrays: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        self._rule, self._journal, self._ask, self._repeats = rule, journal, ask, repeats
        self._cells: tuple[Tensor, Tensor] | None = None
        self._sketches: dict[int, FloatArray] = {
            int(name.removeprefix(_NAME)): np.asarray(sketch, np.float64)
            for name, sketch in (arrays or {}).items()
            if name.startswith(_NAME)
        }

    def cohort(self, round: int, parameters: Tensor) -> IntArray:
        """What the rule comes to, unless the journal has it already."""
        found = self._journal.cohort(round)
        if found is not None:
            return found
        view = self._journal.view(round, self._sketches, repeats=self._repeats)
        return rule_cohort(self._rule, view, lambda asked: self.reports(round, asked, parameters))

    def reports(self, round: int, clients: IntArray, parameters: Tensor) -> dict[int, float]:
        """The reports of these clients on this model: counted, then asked for, then kept.

        An answer that is in the journal already is given again, not asked for again. A report that
        a crash left counted but unanswered is asked for again where that gives the very same number
        (a seeded simulation, a guard that stores it); otherwise it is a new one and is charged once
        more.

        Raises:
            BudgetExceededError: a client is at its cap; nothing was asked for.
        """
        known = self._journal.answers(round)
        missing = [int(k) for k in clients if int(k) not in known]
        paid = self._journal.asked(round) if self._repeats else set()
        self._journal.count_reports(round, [k for k in missing if k not in paid])
        if missing:
            fresh = self._ask(round, missing, parameters)
            self._journal.keep_answers(round, fresh)
            known = {**known, **fresh}
        return {int(k): known[int(k)] for k in clients if int(k) in known}

    def saw(self, clients: IntArray, updates: Tensor) -> None:
        """Keep sketches of updates, if the rule looks at them."""
        if self._rule.watches_updates:
            sketches = self._sketch(updates)
            for row, client in enumerate(clients.tolist()):
                self._sketches[client] = sketches[row]

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The sketches by name."""
        return {f"{_NAME}{client}": sketch for client, sketch in self._sketches.items()}

    def _sketch(self, updates: Tensor) -> FloatArray:
        dimension = updates.shape[1]
        if dimension <= _WIDTH:
            return np.asarray(updates.double().cpu().numpy(), dtype=np.float64).copy()
        if self._cells is None or self._cells[0].numel() != dimension:
            rng = np.random.default_rng([dimension, _WIDTH])
            cells = torch.as_tensor(rng.integers(0, _WIDTH, dimension))
            signs = torch.as_tensor(2.0 * rng.integers(0, 2, dimension) - 1)
            self._cells = (cells.to(updates.device), signs.to(updates))
        cells, signs = self._cells
        sketch = updates.new_zeros(updates.shape[0], _WIDTH)
        sketch.index_add_(1, cells, updates * signs)
        return np.asarray(sketch.double().cpu().numpy(), dtype=np.float64)
