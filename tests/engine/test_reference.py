# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.engine import Experiment, ReferenceEngine, Streams, draw_batches
from dpcohort.engine.clipping import CLIP_SLACK


def test_one_round_by_hand(make_plan: Any, make_records: Any) -> None:
    """Two draws, gradients by plain autograd one record at a time, noise by name."""
    plan = make_plan([8, 5], [[1, 1]], sampler="poisson", batch_size=2, clip=0.3, noise=[1.0, 2.0])
    inputs = torch.randn(13, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    records = make_records(inputs, [8, 5], classes=2)
    model = nn.Linear(3, 2).double()
    streams = Streams.seeded(9)
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    update = torch.zeros_like(expected)
    for draw in (0, 1):
        name = {"round": 0, "client": 1, "draw": draw}
        sampling = {"size": 5, "rate": 0.4, "batch_size": 2}
        positions = draw_batches(streams, SAMPLERS["poisson"], **sampling, **name)(0)
        total = torch.zeros_like(expected)
        for x, y in zip(*records.gather(records.rows(1, positions)), strict=True):
            model.zero_grad()
            nn.functional.cross_entropy(model(x[None]), y[None]).backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
            total += gradient / max(1.0, float(gradient.norm()) / (0.3 * (1 - CLIP_SLACK)))
        noise = streams.normal_(torch.empty_like(expected), **name, step=0)
        update += 0.1 * (total / 2 + 2.0 * 0.3 / 2 * noise) / 2
    engine = ReferenceEngine(model, [Experiment(plan=plan, records=records, streams=streams)])
    state = engine.initial_states()[0]
    ((record,),) = engine.rounds([state])
    torch.testing.assert_close(state.parameters, expected - update, rtol=1e-12, atol=1e-12)
    assert record.clients == (1, 1)
