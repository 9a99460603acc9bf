# SPDX-License-Identifier: Apache-2.0
"""CLDP-SGD without its shuffler: each record is protected against whoever receives its reports.

The same randomiser as :mod:`dpcohort.lab.schemes.cldp` with nobody to trust. What is lost is the
amplification by shuffling and by sampling; what is won is that clients may use their own e0, since
no report has to look like another. The rounds in which a record reports are drawn before training;
a client's e0 is the largest with which its busiest record keeps (epsilon_k, delta_k), by the exact
composition of randomised response. This is what CLDP-SGD falls back to where no amplification is
proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.clients import Population
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.cldp import largest_local_epsilon
from dpcohort.lab.schemes.receipt import Outcome, scheme_receipts
from dpcohort.lab.schemes.shuffling import local_epsilon

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["LDP"]

_PUBLIC_EPSILON = 12.0  # a public record need not hide, but its reports have the same form


@dataclass(frozen=True, kw_only=True)
class LDP:
    """Local reports of single records, seen by the server as they are.

    Attributes:
        mode: ``honest`` only.

    Example:
        >>> LDP().card.unit
        'local record'
    """

    mode: Mode = "honest"

    @property
    def card(self) -> Card:
        """The scheme in words."""
        return Card(
            name="ldp",
            title="private report of each record, seen by the server as it is",
            unit="local record",
            neighbours="replace-one",
            sees="each record's own reports",
            accountant="exact composition of randomised response",
            needs="nothing, no trust in anyone",
            reference="Duchi, Jordan and Wainwright, 2018; randomiser of Girgis et al., 2021",
            source="authors' code read",
        )

    def report_epsilons(self, population: Population, uses: IntArray) -> FloatArray:
        """e0 of each client's reports, from how often its busiest record reports.

        Example:
            >>> people = Population.from_arrays(sizes=[9, 9], epsilon=[1.0, 4.0], delta=1e-5)
            >>> LDP().report_epsilons(people, np.array([4, 1])).round(2).tolist()
            [0.25, 4.0]
        """
        found = np.full(len(population), _PUBLIC_EPSILON)
        for k in np.flatnonzero(~population.public & (uses > 0)).tolist():
            delta, count = float(population.delta[k]), int(uses[k])

            def total(e0: float, count: int = count, delta: float = delta) -> float:
                return local_epsilon(report_epsilon=e0, reports=count, delta=delta)

            found[k] = largest_local_epsilon(total, float(population.epsilon[k]))
        return found

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        from dpcohort.lab.schemes.local_randomiser import report_length
        from dpcohort.lab.schemes.reports import private_reports, sampled_records
        from dpcohort.lab.schemes.rounds import train_rounds

        people = federation.population
        reports = int(federation.batch_sizes.sum())
        drawn = np.zeros(federation.total_size, dtype=np.int64)
        for t in range(federation.training.rounds):
            drawn[sampled_records(federation, t, reports)] += 1
        owner = np.repeat(np.arange(len(people)), federation.sizes)
        busiest = np.zeros(len(people), dtype=np.int64)
        np.maximum.at(busiest, owner, drawn)
        own = self.report_epsilons(people, busiest)
        lengths = np.array(
            [
                report_length(
                    clip=federation.training.clip,
                    local_epsilon=float(e0),
                    dimension=federation.dimension,
                )
                for e0 in own
            ]
        )
        mean_square = float((lengths[owner] ** 2).mean())
        std = float(np.sqrt(mean_square / (federation.dimension * reports)))

        def update(t: int, weights: Tensor) -> tuple[Tensor, float]:
            mean = private_reports(federation, t, weights, reports, own[owner]).mean(0)
            alpha = federation.step_size(t)
            return alpha * mean, alpha * std

        return train_rounds(
            federation,
            update,
            card=self.card,
            mode=self.mode,
            receipts=lambda: scheme_receipts(
                people,
                self.card,
                self.mode,
                claimed=np.full(len(people), np.nan),
                certified=_certified(people, own, busiest),
                noise=np.full(len(people), np.nan),
                uses=busiest,
                assumptions=["which records report in which round is public"],
            ),
        )


def _certified(people: Population, own: FloatArray, uses: IntArray) -> FloatArray:
    found = np.full(len(people), np.nan)
    for k in np.flatnonzero(~people.public).tolist():
        found[k] = local_epsilon(
            report_epsilon=float(own[k]), reports=int(uses[k]), delta=float(people.delta[k])
        )
    return found
