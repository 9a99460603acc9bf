# SPDX-License-Identifier: Apache-2.0
"""What is kept of one training of a cell, whatever chose its cohorts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dpcohort.runs.run import Run

__all__ = ["Outcome", "outcome_of_run"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Public results of one training; accuracies are shares of 1.

    Attributes:
        accuracy: on the test records: of the average of iterates where one is kept.
        last: of the last iterate.
        curve: (rounds done, accuracy) at every evaluation.
        clients_drawn: clients with a budget that were drawn at least once.
        clients_lifted: clients whose paper noise did not certify and was raised.
        promises_hold: what every client spent is certified to be within its budget; raw reports,
            which nothing can bound, are not in it.
        plan: hash of the plan.

    Example:
        >>> Outcome(accuracy=0.5, last=0.4, curve=((1, 0.5),), clients_drawn=3, clients_lifted=0,
        ...         promises_hold=True, plan="ab").last
        0.4
    """

    accuracy: float
    last: float
    curve: tuple[tuple[int, float], ...]
    clients_drawn: int
    clients_lifted: int
    promises_hold: bool
    plan: str


def outcome_of_run(run: Run, known: dict[str, tuple[int, bool]] | None) -> Outcome:
    """The outcome of a run.

    Args:
        run: finished.
        known: receipts of runs that spent the same, which share them; None checks none and says
            that no promise was shown to hold.
    """
    drawn, holds = (0, False) if known is None else _certified(run, known)
    curve = run.curve()
    last = next(line.test for line in reversed(run.history) if line.test is not None)
    return Outcome(
        accuracy=run.test_accuracy,
        last=last.accuracy,
        curve=tuple(zip(curve.rounds.tolist(), curve.accuracy.tolist(), strict=True)),
        clients_drawn=drawn,
        clients_lifted=int(run.plan.noise.lifted.sum()),
        promises_hold=holds,
        plan=run.plan.sha256,
    )


def _certified(run: Run, known: dict[str, tuple[int, bool]]) -> tuple[int, bool]:
    key = f"{run.plan.sha256} {run.ledger.draws.tolist()}"
    if key not in known:
        from dpcohort.runs.receipts import make_receipts

        drawn = np.flatnonzero(run.ledger.draws)
        found = make_receipts(run.plan, run.ledger.draws, clients=drawn)
        known[key] = (len(found), all(receipt.holds for receipt in found))
    return known[key]
