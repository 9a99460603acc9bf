# SPDX-License-Identifier: Apache-2.0
"""Measures the loss of a model on clients' records. SENSITIVE: for the desk's eyes only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive.report_terms import ReportTerms
from dpcohort.engine import ClientRecords, Loss, cross_entropy
from dpcohort.engine.layout import FlatLayout

__all__ = ["LossMeter"]


class LossMeter:
    """Evaluates clipped losses on the records of many clients in few passes.

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
        self._records, self._loss = records, loss
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
            units: of a lattice for each client: every record's number is cut off towards 0 to a
                whole number of units, and those are added, so that no rounding of a sum depends
                on two records.

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
            losses = self._loss(self._model(inputs), targets).double()
            values = _centred(losses, terms)
            if unit is not None:
                values = (values / unit[owners[part]]).long()
            sums.index_add_(0, owners[part], values)
        return np.asarray(sums.cpu().numpy())

    def _looked_at(self, positions: Mapping[int, IntArray | None]) -> tuple[Tensor, Tensor]:
        """Rows of the store and whose they are, where the records are.

        Those of whole clients are kept: most rules ask the same clients in every round.
        """
        whole = tuple(positions) if all(p is None for p in positions.values()) else None
        if self._all_of is not None and self._all_of[0] == whole:
            return self._all_of[1:]
        parts = [self._rows(client, chosen) for client, chosen in positions.items()]
        counted = np.repeat(np.arange(len(parts)), [part.size for part in parts])
        rows = torch.as_tensor(np.concatenate(parts), device=self._records.device)
        owners = torch.as_tensor(counted, device=self._records.device)
        if whole is not None:
            self._all_of = (whole, rows, owners)
        return rows, owners

    def _rows(self, client: int, chosen: IntArray | None) -> IntArray:
        if chosen is None:
            chosen = np.arange(int(self._records.sizes[client]))
        return self._records.rows(client, chosen)


def _centred(losses: Tensor, terms: ReportTerms) -> Tensor:
    clipped = losses.clamp(0.0, terms.loss_bound)
    statistic = clipped if terms.statistic == "loss" else clipped.square()
    return torch.where(torch.isnan(losses), 0.0, statistic - terms.half_range)
