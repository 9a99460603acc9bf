# SPDX-License-Identifier: Apache-2.0
"""The desk: the only way to a report. It checks the cap, counts, clips, noises, in this order.

What it computes on records before the noise never leaves this module. Rules do not hold the desk;
they name clients, and get its answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive.book import Book
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.report_terms import ReportTerms
from dpcohort.engine import Streams
from dpcohort.engine.lattice import Lattice
from dpcohort.engine.randomness import draw_positions
from dpcohort.errors import InputError

__all__ = ["REPORT_DRAW", "Meter", "ReportDesk"]

#: Names the streams of reports; no training draw has a number so large.
REPORT_DRAW = 1 << 30
#: Noise a hair above what was asked for, to cover the rounding of sums.
_ROUNDING = 1 + 1e-9
#: Units a hair wider, so that no record's whole number of them is above the bound.
_LATTICE_SLACK = 1 + 1e-6

Positions = Mapping[int, IntArray | None]


class Meter(Protocol):
    """Measures records; SENSITIVE, used by the desk alone."""

    def raw_centred_sums(
        self,
        parameters: Tensor,
        positions: Mapping[int, IntArray | None],
        terms: ReportTerms,
        *,
        units: FloatArray | None = None,
    ) -> FloatArray | IntArray:
        """Σ (g_i − t/2) over the named records of each client; None means all of them.

        With units, one for each client: in whole numbers of them, each record's cut off.
        """
        ...


class ReportDesk:
    """Answers for clients, on the terms of a plan.

    Args:
        plan: caps, terms and noise.
        book: where reports are counted.
        meter: measures records.
        streams: where noise and mini-batches come from.
    """

    def __init__(self, plan: AdaptivePlan, book: Book, meter: Meter, *, streams: Streams) -> None:
        self._plan, self._book, self._meter, self._streams = plan, book, meter, streams

    def ask(self, round: int, clients: IntArray, parameters: Tensor) -> dict[int, float]:
        """The reports of these clients on this model.

        An answer that is in the book already is given again, not computed again. A report that a
        crash left counted but unanswered is computed again where that gives the very same number
        (a seeded simulation); otherwise it is a new one and is charged once more.

        Raises:
            BudgetExceededError: a client is at its cap; nothing was computed.
        """
        terms = self._plan.terms
        if terms is None:
            raise InputError.because(f"the rule {self._plan.rule_name} has no reports.")
        known = self._book.answers(round)
        missing = [int(k) for k in clients if int(k) not in known]
        paid = self._book.counted(round) if self._streams.is_reproducible else set()
        self._book.count_reports(round, [k for k in missing if k not in paid])
        if missing:
            fresh = self._computed(round, missing, parameters, terms)
            self._book.keep_answers(round, fresh)
            known = {**known, **fresh}
        return {int(k): known[int(k)] for k in clients}

    def _computed(
        self, round: int, clients: list[int], parameters: Tensor, terms: ReportTerms
    ) -> dict[int, float]:
        """Clipped, centred, summed, noised, divided by a public number."""
        positions = {k: self._positions(round, k, terms) for k in clients}
        noisy_sums = self._simulated if self._streams.is_reproducible else self._private
        answers = {}
        for k, noisy in noisy_sums(round, clients, parameters, positions, terms).items():
            answers[k] = terms.half_range + noisy / self._looked_at(k, terms)
        return answers

    def _simulated(
        self, round: int, clients: list[int], parameters: Tensor, positions: Positions,
        terms: ReportTerms,
    ) -> dict[int, float]:  # fmt: skip
        """Sums with floating-point noise of a seed."""
        raw = self._meter.raw_centred_sums(parameters, positions, terms)
        stds = [self._multiplier(k, terms) * terms.half_range * _ROUNDING for k in clients]
        return {
            k: float(raw_sum) + (std * self._normal(round, k) if std > 0 else 0.0)
            for k, raw_sum, std in zip(clients, raw, stds, strict=True)
        }

    def _private(
        self, round: int, clients: list[int], parameters: Tensor, positions: Positions,
        terms: ReportTerms,
    ) -> dict[int, float]:  # fmt: skip
        """Sums on a lattice, with noise of a cryptographic stream; public clients without noise."""
        quiet = [k for k in clients if self._multiplier(k, terms) == 0.0]
        kept = {k: positions[k] for k in quiet}
        answers: dict[int, float] = {}
        if quiet:
            sums = self._meter.raw_centred_sums(parameters, kept, terms)
            answers = {k: float(raw_sum) for k, raw_sum in zip(quiet, sums, strict=True)}
        lattices = {
            k: Lattice(self._multiplier(k, terms), terms.half_range)
            for k in clients
            if k not in answers
        }
        if not lattices:
            return answers
        units = np.array([lattice.unit for lattice in lattices.values()]) * _LATTICE_SLACK
        noised = {k: positions[k] for k in lattices}
        totals = self._meter.raw_centred_sums(parameters, noised, terms, units=units)
        for (k, lattice), total in zip(lattices.items(), totals, strict=True):
            key = self._streams.noise_key(round=round, client=k, draw=REPORT_DRAW)
            answers[k] = float(lattice.release(torch.tensor([int(total)]), key, scale=1.0))
        return {k: answers[k] for k in clients}

    def _multiplier(self, k: int, terms: ReportTerms) -> float:
        """Noise multiplier of a client's reports; 0 only where none is needed."""
        z = float(self._plan.report_multipliers[k])
        if not z > 0 and not (self._plan.population.public[k] or terms.mode == "raw"):
            name = self._plan.population.ids[k]
            raise InputError.because(f"reports of {name!r} have no noise; make the plan again.")
        return z

    def _positions(self, round: int, k: int, terms: ReportTerms) -> IntArray | None:
        if not terms.mini_batch:
            return None
        return draw_positions(
            self._streams,
            self._plan.contract.sampler,
            size=int(self._plan.population.sizes[k]),
            rate=float(self._plan.sampling_rates[k]),
            batch_size=int(self._plan.batch_sizes[k]),
            round=round,
            client=k,
            draw=REPORT_DRAW,
            step=0,
        )

    def _looked_at(self, k: int, terms: ReportTerms) -> int:
        """The public number of records a report is a mean of."""
        column = self._plan.batch_sizes if terms.mini_batch else self._plan.population.sizes
        return int(column[k])

    def _normal(self, round: int, k: int) -> float:
        out = torch.empty(1, dtype=torch.float64)
        return float(self._streams.normal_(out, round=round, client=k, draw=REPORT_DRAW))
