# SPDX-License-Identifier: Apache-2.0
"""CLDP-SGD of Girgis et al.: each record sends a private report of its own, through a shuffler.

A. Girgis, D. Data, S. Diggavi, P. Kairouz and A. T. Suresh, "Shuffled model of differential privacy
in federated learning", AISTATS 2021 (authors' code read). A round draws m of all n records without
replacement; each sends its gradient through the e0-private l2 randomiser
(``local_randomiser``), the shuffler mixes the reports, and the server takes a
step along their mean. One e0 serves all, since a shuffler hides nobody whose reports look
different; so it is set by the strictest client, and larger budgets are not used up.

Three epsilons of the same training:

- against a server behind an honest shuffler, *certified* by the computed clones bound, sampling and
  composition (:func:`dpcohort.lab.schemes.shuffling.shuffled_epsilon`);
- the same, *claimed* by the closed form and advanced composition; where the closed form's condition
  fails there is no amplification by shuffling, and the receipt says so;
- against whoever sees a record's own reports, without trust in anyone: local, far larger
  (:mod:`dpcohort.lab.schemes.ldp` trains with that promise).

``honest`` calibrates e0 on the first, ``formula`` on the second. The paper's own amplification
bound is older and was not read; the closed form, which is proved, stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import number
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.receipt import Outcome, SchemeReceipt, scheme_receipts
from dpcohort.lab.schemes.shuffling import (
    ClosedForm,
    composed_closed_form,
    local_epsilon,
    shuffled_epsilon,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["CLDP", "largest_local_epsilon"]

_SMALLEST, _LARGEST = 1e-4, 12.0
_HALVINGS = 18


def largest_local_epsilon(spent: Callable[[float], float], epsilon: float) -> float:
    """The largest e0 whose total is within epsilon, found from below.

    Args:
        spent: total epsilon at an e0, increasing.
        epsilon: promised.

    Raises:
        BudgetExceededError: even an e0 of 0.0001 spends more.

    Example:
        >>> round(largest_local_epsilon(lambda e0: 3 * e0, 1.0), 3)
        0.333
    """
    number("epsilon", epsilon, above=0)
    if spent(_SMALLEST) > epsilon:
        raise BudgetExceededError(
            f"even reports with a local epsilon of {_SMALLEST:g} spend more than the promised "
            f"{epsilon:g}. Take fewer rounds."
        )
    low, high = np.log(_SMALLEST), np.log(_LARGEST)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if spent(float(np.exp(middle))) <= epsilon else (low, middle)
    return float(np.exp(low))


@dataclass(frozen=True, kw_only=True)
class CLDP:
    """Local reports of single records through a shuffler.

    Attributes:
        mode: ``honest`` or ``formula``.

    Example:
        >>> CLDP().card.unit
        'record'
    """

    mode: Mode = "honest"

    @property
    def card(self) -> Card:
        """The scheme in words."""
        return Card(
            name="cldp",
            title="private report of each record, shuffled",
            unit="record",
            neighbours="replace-one",
            sees="the shuffled reports",
            accountant="clones bound computed, sampling without replacement, PLD composition",
            needs="a shuffler that nobody can look behind",
            reference="Girgis et al., AISTATS 2021; Feldman, McMillan and Talwar, FOCS 2021",
            source="authors' code read",
            formula="closed form of Feldman, McMillan and Talwar with advanced composition",
        )

    def spent(
        self, report_epsilon: float, *, reports: int, records: int, rounds: int, delta: float
    ) -> tuple[float, ClosedForm]:
        """Certified and closed-form epsilon of a training."""
        setting = {"reports": reports, "rate": reports / records, "rounds": rounds, "delta": delta}
        certified = shuffled_epsilon(local_epsilon=report_epsilon, **setting)  # type: ignore[arg-type]
        closed = composed_closed_form(local_epsilon=report_epsilon, **setting)  # type: ignore[arg-type]
        return certified, closed

    def report_epsilon(
        self, population: Population, *, reports: int, records: int, rounds: int
    ) -> float:
        """e0 of every report: what the strictest client's budget allows."""
        some = ~population.public
        if not some.any():
            return _LARGEST
        epsilon, delta = float(population.epsilon[some].min()), float(population.delta[some].min())
        setting = {"reports": reports, "rate": reports / records, "rounds": rounds, "delta": delta}

        def total(e0: float) -> float:
            if self.mode == "formula":
                return composed_closed_form(local_epsilon=e0, **setting).epsilon  # type: ignore[arg-type]
            return shuffled_epsilon(local_epsilon=e0, **setting)  # type: ignore[arg-type]

        return largest_local_epsilon(total, epsilon)

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        from dpcohort.lab.schemes.local_randomiser import report_length
        from dpcohort.lab.schemes.reports import private_reports
        from dpcohort.lab.schemes.rounds import train_rounds

        records, rounds = federation.total_size, federation.training.rounds
        reports = int(federation.batch_sizes.sum())
        clip = federation.training.clip
        e0 = self.report_epsilon(
            federation.population, reports=reports, records=records, rounds=rounds
        )
        length = report_length(clip=clip, local_epsilon=e0, dimension=federation.dimension)
        # A report has length M in a nearly uniform direction: M / sqrt(D) in each coordinate.
        std = length / np.sqrt(federation.dimension * reports)
        done = [0]

        def update(t: int, weights: Tensor) -> tuple[Tensor, float]:
            done[0] += 1
            everyone = np.full(records, e0)
            mean = private_reports(federation, t, weights, reports, everyone).mean(0)
            alpha = federation.step_size(t)
            return alpha * mean, alpha * float(std)

        return train_rounds(
            federation,
            update,
            card=self.card,
            mode=self.mode,
            receipts=lambda: self._receipts(federation, e0, reports, done[0]),
            notes=lambda: self._notes(federation, e0, reports, done[0]),
        )

    def _receipts(
        self, federation: Federation, e0: float, reports: int, rounds: int
    ) -> list[SchemeReceipt]:
        people = federation.population
        totals = {
            delta: self.spent(
                e0, reports=reports, records=federation.total_size, rounds=rounds, delta=delta
            )
            for delta in {float(d) for d in people.delta[~people.public]}
        }
        empty = (np.nan, ClosedForm(np.nan, amplified=False))
        found = [totals.get(float(d), empty) for d in people.delta]
        return scheme_receipts(
            people,
            self.card,
            self.mode,
            claimed=np.array([closed.epsilon for _, closed in found]),
            certified=np.array([certified for certified, _ in found]),
            noise=np.full(len(people), np.nan),
            uses=np.full(len(people), rounds),
            assumptions=[
                "the shuffler is honest and hides which records reported",
                f"each report alone is {e0:.4g}-private, against anyone",
                "the closed form amplifies"
                if all(closed.amplified for _, closed in totals.values())
                else "the closed form's condition fails here: it gives no amplification by "
                "shuffling, only by sampling",
            ],
        )

    def _notes(self, federation: Federation, e0: float, reports: int, rounds: int) -> list[str]:
        private = federation.private
        if not private.any() or rounds == 0:
            return []
        delta = float(federation.population.delta[private].min())
        alone = local_epsilon(report_epsilon=e0, reports=rounds, delta=delta)
        return [
            f"Each of {reports} reports a round is {e0:.3g}-private; without the shuffler a "
            f"record that reported in all {rounds} rounds would have epsilon {alone:.3g}."
        ]
