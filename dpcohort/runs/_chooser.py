# SPDX-License-Identifier: Apache-2.0
"""Who names the cohorts of an adaptive plan, and the reports it chooses from.

A report is counted, computed, clipped and noised, in this order. What is computed on records before
the noise never leaves this module. Rules do not hold the handler; they name clients, and get its
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive import ReportTerms
from dpcohort.adaptive._rule import REPORT_DRAW
from dpcohort.engine import ClientRecords, Lattice, Loss, Streams, cross_entropy, draw_batches
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._rounds import one_thread_each
from dpcohort.engine.clipping import FlatLayout
from dpcohort.errors import InputError
from dpcohort.plan import Plan
from dpcohort.planning._participation import Participation
from dpcohort.runs._journal import Journal

#: Gets noised reports of clients on a model, in a round, by position; some may not come.
Ask = Callable[[int, list[int], Tensor], Mapping[int, float]]

#: Numbers kept of an update; shorter updates are kept whole.
_WIDTH = 512
SKETCHES = "adaptive.update."


class Chooser:
    """Selection of each round's cohort, with charged reports and what it may know of updates.

    Updates carry their noise when the server sees them, so to look at them is post-processing and
    free. For rules that do, a sketch of each client's last update is kept: every coordinate is
    added, with a random sign, to one of a few hundred cells; signs and cells are public. Inner
    products of sketches are those of the updates in the mean (count sketch, Charikar et al., 2002).

    Args:
        participation: what decides: a schedule, or a rule.
        journal: what was reported and drawn.
        ask: makes what gets reports, which are counted before.
        repeats: whether a report that a crash left unanswered is made again as the very same one.
        arrays: of the checkpoint that a run goes on from.
    """

    def __init__(
        self,
        participation: Participation,
        journal: Journal,
        ask: Callable[[], Ask],
        *,
        repeats: bool,
        arrays: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        self._participation, self._journal = participation, journal
        self._make_ask, self._repeats = ask, repeats
        self._cells: tuple[Tensor, Tensor] | None = None
        self._sketches: dict[int, FloatArray] = {
            int(name.removeprefix(SKETCHES)): np.asarray(sketch, np.float64)
            for name, sketch in (arrays or {}).items()
            if name.startswith(SKETCHES)
        }

    def cohort(self, round: int, parameters: Tensor) -> IntArray:
        """Positions of the clients drawn in a round: those counted already, or chosen now."""
        counted = self._journal.cohort(round)
        if counted is not None:
            return counted
        return self._participation.choose(
            round,
            lambda: self._journal.view(round, self._sketches, repeats=self._repeats),
            lambda asked: self.reports(round, asked, parameters),
        )

    @cached_property
    def _ask(self) -> Ask:
        """What gets reports; made when the first are asked for."""
        return self._make_ask()

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
        if self._participation.watches_updates:
            sketches = self._sketch(updates)
            for row, client in enumerate(clients.tolist()):
                self._sketches[client] = sketches[row]

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The sketches by name."""
        return {f"{SKETCHES}{client}": sketch for client, sketch in self._sketches.items()}

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


#: Noise a hair above what was asked for, to cover the rounding of sums.
_ROUNDING = 1 + 1e-9
#: Units a hair wider, so that no record's whole number of them is above the bound.
_LATTICE_SLACK = 1 + 1e-6

Positions = Mapping[int, IntArray | None]


class ReportHandler:
    """Answers for clients on the terms of a plan: clips and noises what the meter measures.

    Args:
        plan: terms and noise.
        meter: measures records.
        streams: where noise and mini-batches come from.
    """

    def __init__(self, plan: Plan, meter: LossMeter, *, streams: Streams) -> None:
        self._plan, self._meter, self._streams = plan, meter, streams

    def ask(self, round: int, clients: list[int], parameters: Tensor) -> dict[int, float]:
        """The reports of these clients on this model, which are counted by whoever asks.

        Clipped, centred, summed, noised, divided by a public number.
        """
        terms = self._plan.reports.terms
        positions = {k: self._positions(round, k, terms) for k in clients}
        noisy_sums = self._simulated if self._streams.is_reproducible else self._private
        noisy = noisy_sums(round, parameters, positions, terms)
        # The public number of records that a report is a mean of.
        looked_at = self._plan.batch_sizes if terms.mini_batch else self._plan.population.sizes
        return {k: terms.half_range + found / int(looked_at[k]) for k, found in noisy.items()}

    def _simulated(
        self, round: int, parameters: Tensor, positions: Positions, terms: ReportTerms
    ) -> dict[int, float]:
        """Sums with floating-point noise of a seed."""
        raw = self._meter.raw_centred_sums(parameters, positions, terms)
        stds = [self._multiplier(k, terms) * terms.half_range * _ROUNDING for k in positions]
        answers, noise = {}, torch.empty(1, dtype=torch.float64)
        for k, raw_sum, std in zip(positions, raw, stds, strict=True):
            self._streams.normal_(noise, round=round, client=k, draw=REPORT_DRAW)
            answers[k] = float(raw_sum) + std * float(noise)
        return answers

    def _private(
        self, round: int, parameters: Tensor, positions: Positions, terms: ReportTerms
    ) -> dict[int, float]:
        """Sums on a lattice, with noise of a cryptographic stream; public clients without noise."""
        multipliers = {k: self._multiplier(k, terms) for k in positions}
        quiet = {k: positions[k] for k, z in multipliers.items() if z == 0.0}
        sums = self._meter.raw_centred_sums(parameters, quiet, terms)
        answers = {k: float(raw_sum) for k, raw_sum in zip(quiet, sums, strict=True)}
        lattices = {k: Lattice(z, terms.half_range) for k, z in multipliers.items() if z}
        units = np.array([lattice.unit for lattice in lattices.values()])
        noised = {k: positions[k] for k in lattices}
        totals = self._meter.raw_centred_sums(parameters, noised, terms, units=units)
        for (k, lattice), total in zip(lattices.items(), totals, strict=True):
            key = self._streams.noise_key(round=round, client=k, draw=REPORT_DRAW)
            answers[k] = float(lattice.release(torch.tensor([int(total)]), key, scale=1.0))
        return {k: answers[k] for k in positions}

    def _multiplier(self, k: int, terms: ReportTerms) -> float:
        """Noise multiplier of a client's reports; 0 only where none is needed."""
        z = float(self._plan.reports.multipliers[k])
        if not z > 0 and not (self._plan.population.public[k] or terms.mode == "raw"):
            name = self._plan.population.ids[k]
            raise InputError.because(f"reports of {name!r} have no noise; make the plan again.")
        return z

    def _positions(self, round: int, k: int, terms: ReportTerms) -> IntArray | None:
        if not terms.mini_batch:
            return None
        batches = draw_batches(
            self._streams,
            self._plan.contract.sampler,
            size=int(self._plan.population.sizes[k]),
            rate=float(self._plan.sampling_rates[k]),
            batch_size=int(self._plan.batch_sizes[k]),
            round=round,
            client=k,
            draw=REPORT_DRAW,
        )
        return batches(0)


class LossMeter:
    """Evaluates clipped losses on the records of many clients in few passes. SENSITIVE.

    Args:
        model: the module; it is copied.
        records: the clients' data.
        loss: one number an example.
        chunk: records in a pass; None is a few thousand, more on an accelerator, whose passes
            cost as much to start as to do.
    """

    def __init__(
        self,
        model: nn.Module,
        records: ClientRecords,
        *,
        loss: Loss = cross_entropy,
        chunk: int | None = None,
    ) -> None:
        self._model = records.fit(model).eval()
        self._layout = FlatLayout(self._model)
        self._records, self._loss = records, records.loss(loss)
        self._chunk = chunk or (4096 if records.device.type == "cpu" else 16384)
        self._all_of: tuple[tuple[int, ...], Tensor, Tensor] | None = None

    @torch.no_grad()
    def raw_centred_sums(
        self,
        parameters: Tensor,
        positions: Mapping[int, IntArray | None],
        terms: ReportTerms,
        *,
        units: FloatArray | None = None,
    ) -> FloatArray | IntArray:
        """Σ (g_i − t/2) of each client, g clipped to [0, t]; a loss that is no number adds 0.

        Args:
            parameters: of the model, [D].
            positions: of the records looked at, by client; None means all of them.
            terms: statistic and bound.
            units: of a lattice for each client: every record's loss is computed by itself, its
                number is cut off towards 0 to a whole number of units, and those are added, so
                that nothing depends on two records.

        Returns:
            One sum for each client, in the order given; integers where there are units.
            SENSITIVE: it carries no noise.
        """
        if not positions:
            return np.zeros(0)
        device = self._records.device
        self._layout.assign(self._model, parameters)
        rows, owners = self._looked_at(positions)
        kind = torch.float64 if units is None else torch.int64
        sums = torch.zeros(len(positions), dtype=kind, device=device)
        unit = None if units is None else torch.as_tensor(units, device=device)
        for start in range(0, rows.numel(), self._chunk):
            part = slice(start, start + self._chunk)
            inputs, targets = self._records.gather(rows[part])
            if unit is None:
                losses = self._loss(self._model(inputs), targets).double()
                values = _centred(losses, terms)
            else:
                losses = self._isolated.losses(parameters, inputs, targets)
                values = lattice_units(losses, terms, unit[owners[part]])
            sums.index_add_(0, owners[part], values)
        return np.asarray(sums.cpu().numpy())

    @cached_property
    def _isolated(self) -> IsolatedModel:
        """What gives private records their losses."""
        alike = self._records.gather(self._records.indices[:1])
        with one_thread_each():
            return IsolatedModel(self._model, self._loss, *alike, gradients=False)

    def _looked_at(self, positions: Mapping[int, IntArray | None]) -> tuple[Tensor, Tensor]:
        """Rows of the store and whose they are, where the records are.

        Those of whole clients are kept: most rules ask the same clients in every round.
        """
        whole = tuple(positions) if all(p is None for p in positions.values()) else None
        if self._all_of is not None and self._all_of[0] == whole:
            return self._all_of[1:]
        sizes = self._records.sizes
        parts = [
            self._records.rows(client, np.arange(int(sizes[client])) if chosen is None else chosen)
            for client, chosen in positions.items()
        ]
        counted = np.repeat(np.arange(len(parts)), [part.size for part in parts])
        rows = torch.as_tensor(np.concatenate(parts), device=self._records.device)
        owners = torch.as_tensor(counted, device=self._records.device)
        if whole is not None:
            self._all_of = (whole, rows, owners)
        return rows, owners


def lattice_units(losses: Tensor, terms: ReportTerms, unit: Tensor | float) -> Tensor:
    """What each record adds to a report, as a whole number of units, at most half of the range.

    Cut off towards 0, so that no rounding of a sum depends on two records. SENSITIVE.

    Example:
        >>> terms = ReportTerms(loss_bound=4.0)
        >>> lattice_units(torch.tensor([0.0, 3.0, torch.inf, torch.nan]), terms, 0.1).tolist()
        [-19, 9, 19, 0]
    """
    return (_centred(losses.double(), terms) / (unit * _LATTICE_SLACK)).long()


def _centred(losses: Tensor, terms: ReportTerms) -> Tensor:
    clipped = losses.clamp(0.0, terms.loss_bound)
    statistic = clipped if terms.statistic == "loss" else clipped.square()
    return torch.where(torch.isnan(losses), 0.0, statistic - terms.half_range)
