# SPDX-License-Identifier: Apache-2.0
"""Private reports of a round's sample of records, for the schemes with a local randomiser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dpcohort._validate import FloatArray, IntArray
from dpcohort.engine.randomness import draw_positions
from dpcohort.lab.schemes.local_randomiser import randomise

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.lab.schemes.federation import Federation

__all__ = ["private_reports", "sampled_records"]


def sampled_records(federation: Federation, t: int, reports: int) -> IntArray:
    """Places of the records that report in a round: a fixed number, without replacement."""
    return draw_positions(
        federation.streams,
        "fixed",
        size=federation.total_size,
        rate=1.0,
        batch_size=reports,
        round=t,
        client=len(federation),
        draw=0,
        step=0,
    )


def private_reports(
    federation: Federation, t: int, weights: Tensor, reports: int, local_epsilon: FloatArray
) -> Tensor:
    """The reports [n, D] of a round.

    Args:
        federation: clients, data, model.
        t: the round.
        weights: the model whose gradients are reported.
        reports: how many records report.
        local_epsilon: e0 of every record of the federation, in the order of its rows.
    """
    rows, streams = sampled_records(federation, t, reports), federation.streams
    aggregator = len(federation)
    normals = streams.normal_(
        torch.empty(reports, federation.dimension), round=t, client=aggregator
    )
    words = streams.words("noise", 2 * reports, round=t, client=aggregator, draw=1)
    uniforms = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return randomise(
        federation.raw_gradients(weights, rows),
        clip=federation.training.clip,
        local_epsilon=torch.as_tensor(local_epsilon[rows]),
        normals=normals,
        uniforms=torch.as_tensor(uniforms.reshape(reports, 2)),
    )
