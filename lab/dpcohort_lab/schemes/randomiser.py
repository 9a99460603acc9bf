# SPDX-License-Identifier: Apache-2.0
"""One record's gradient as an epsilon_0-private vector of fixed length (Duchi, Jordan, Wainwright).

The l2 randomiser of CLDP-SGD (Girgis et al., 2021; authors' code read). For a gradient g clipped
to norm C:

1. round to the sphere: u = g/||g||, with the sign + with probability 1/2 + ||g||/(2C), else -;
2. draw V uniformly on the unit sphere, turned so that <V, u> >= 0;
3. with probability 1/(e^e0 + 1) turn it over; send M V.

The density of the report is one of two values whose ratio is e^e0, whatever g was: exactly
e0-private. With M = C (e^e0 + 1)/(e^e0 - 1) / E|V_1| it is unbiased for the clipped gradient, where
E|V_1| = Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)); the published M has sqrt(pi d/2) for 1/E|V_1|, its
limit for many coordinates.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dpcohort.engine import clip_factors
from dpcohort_lab.checks import FloatArray, IntArray

if TYPE_CHECKING:
    from dpcohort_lab.schemes.simulation import Simulation


def report_length(*, clip: float, local_epsilon: float, dimension: int) -> float:
    """M, the length of every report, such that reports are unbiased.

    Example:
        >>> exact = report_length(clip=1.0, local_epsilon=1.0, dimension=650)
        >>> published = math.sqrt(math.pi * 650 / 2) / math.tanh(0.5)
        >>> round(exact / published, 3)
        1.0
    """
    gammas = math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2)
    return clip / math.tanh(local_epsilon / 2) * math.exp(0.5 * math.log(math.pi) + gammas)


@torch.no_grad()
def randomise(
    raw: Tensor, *, clip: float, local_epsilon: Tensor, normals: Tensor, uniforms: Tensor
) -> Tensor:
    """The reports [n, D] of raw gradients [n, D]. They are private; ``raw`` is SENSITIVE.

    Args:
        raw: one gradient a row; one that is not finite counts as zero.
        clip: C.
        local_epsilon: e0 of each report, [n].
        normals: [n, D] standard normal, from which directions are made.
        uniforms: [n, 2] uniform on [0, 1), for the two coins of each report.

    Example:
        >>> reports = randomise(torch.tensor([[3.0, 4.0]]), clip=1.0,
        ...                     local_epsilon=torch.tensor([20.0]),
        ...                     normals=torch.tensor([[-1.0, 0.0]]),
        ...                     uniforms=torch.full((1, 2), 0.5))
        >>> bool(reports[0, 0] > 1)
        True
    """
    squares = raw.square().sum(1)
    factors = clip_factors(squares, clip)
    safe = torch.where(torch.isfinite(squares)[:, None], raw, torch.zeros_like(raw))
    norms = torch.where(torch.isfinite(squares), squares, torch.zeros_like(squares)).sqrt()
    length = (factors * norms).clamp(max=clip)
    # A gradient of zero has no direction; a fixed one does, its sign being a fair coin.
    first = torch.zeros_like(raw)
    first[:, 0] = 1.0
    direction = torch.where((norms > 0)[:, None], safe, first)
    up = uniforms[:, 0].to(raw.dtype) < 0.5 + length / (2 * clip)
    signed = torch.where(up[:, None], direction, -direction)
    vectors = normals / normals.norm(dim=1, keepdim=True)
    towards = (vectors * signed).sum(1) >= 0
    e0 = local_epsilon.double()
    flip = uniforms[:, 1].double() < 1 / (e0.exp() + 1)
    side = torch.where(towards ^ flip, 1.0, -1.0)
    sure = report_length(clip=clip, local_epsilon=1e3, dimension=raw.shape[1])
    lengths = side * sure / torch.tanh(e0 / 2)
    reports: Tensor = vectors * lengths.to(raw.dtype)[:, None]
    return reports


def sampled_records(simulation: Simulation, t: int, reports: int) -> IntArray:
    """Places of the records that report in a round: a fixed number, without replacement."""
    return simulation.batch(len(simulation), rate=1.0, round=t, batch_size=reports)


def private_reports(
    simulation: Simulation, t: int, weights: Tensor, reports: int, local_epsilon: FloatArray
) -> Tensor:
    """The reports [n, D] of a round.

    Args:
        simulation: clients, data, model.
        t: the round.
        weights: the model whose gradients are reported.
        reports: how many records report.
        local_epsilon: e0 of every record of the simulation, in the order of its rows.
    """
    rows, streams = sampled_records(simulation, t, reports), simulation.streams
    aggregator = len(simulation)
    normals = streams.normal_(
        torch.empty(reports, simulation.dimension), round=t, client=aggregator
    )
    words = streams.words("noise", 2 * reports, round=t, client=aggregator, draw=1)
    uniforms = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return randomise(
        simulation.raw_gradients(weights, rows),
        clip=simulation.training.clip,
        local_epsilon=torch.as_tensor(local_epsilon[rows]),
        normals=normals,
        uniforms=torch.as_tensor(uniforms.reshape(reports, 2)),
    )
