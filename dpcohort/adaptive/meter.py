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
        chunk: records in a pass.
    """

    def __init__(
        self,
        model: nn.Module,
        records: ClientRecords,
        *,
        loss: Loss = cross_entropy,
        chunk: int = 4096,
    ) -> None:
        self._model = records.fit(model).eval()
        self._layout = FlatLayout(self._model)
        self._records, self._loss, self._chunk = records, loss, chunk

    @torch.no_grad()
    def raw_centred_sums(
        self, parameters: Tensor, positions: Mapping[int, IntArray | None], terms: ReportTerms
    ) -> FloatArray:
        """Σ (g_i − t/2) of each client, g clipped to [0, t]; a loss that is no number adds 0.

        Args:
            parameters: of the model, [D].
            positions: of the records looked at, by client; None means all of them.
            terms: statistic and bound.

        Returns:
            One sum for each client, in the order given. SENSITIVE: it carries no noise.
        """
        if not positions:
            return np.zeros(0)
        self._layout.assign(self._model, parameters)
        rows = [self._rows(client, chosen) for client, chosen in positions.items()]
        everything = np.concatenate(rows)
        owners = np.repeat(np.arange(len(rows)), [part.size for part in rows])
        sums = torch.zeros(len(rows), dtype=torch.float64, device=self._records.device)
        for start in range(0, everything.size, self._chunk):
            part = slice(start, start + self._chunk)
            inputs, targets = self._records.gather(everything[part])
            losses = self._loss(self._model(inputs), targets).double()
            index = torch.as_tensor(owners[part], device=sums.device)
            sums.index_add_(0, index, _centred(losses, terms))
        return np.asarray(sums.cpu().numpy(), dtype=np.float64)

    def _rows(self, client: int, chosen: IntArray | None) -> IntArray:
        if chosen is None:
            chosen = np.arange(int(self._records.sizes[client]))
        return self._records.rows(client, chosen)


def _centred(losses: Tensor, terms: ReportTerms) -> Tensor:
    clipped = losses.clamp(0.0, terms.loss_bound)
    statistic = clipped if terms.statistic == "loss" else clipped.square()
    return torch.where(torch.isnan(losses), 0.0, statistic - terms.half_range)
