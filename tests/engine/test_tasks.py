# SPDX-License-Identifier: Apache-2.0
"""Both engines train every kind of task, and to the same model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort import plugin
from dpcohort.engine import BatchedEngine, ClientRecords, ConstantStep, Optimiser, ReferenceEngine
from dpcohort.tasks import Task

from .conftest import final, seeded

SIZES = [20, 9, 15]
COHORTS = [[0, 1, 0], [2, 1, 2]]
STAY = {"kind": "regression", "outputs": 1, "bounds": (0.0, 10.0)}
TASKS = {
    "weighted classes": Task(outputs=3, class_weights=(1.0, 2.0, 5.0)),
    "labels": Task(kind="multi-label", outputs=3),
    "squared": Task(**STAY),
    "huber": Task(**STAY, loss="huber", delta=0.5),
    "quantile": Task(**STAY, loss="quantile", quantile=0.8),
    "counts": Task(kind="counts", outputs=1),
    "own": Task(**STAY, loss=f"{__name__}:log_cosh"),
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@plugin("loss")
def log_cosh(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.log(torch.cosh(outputs[:, 0] - targets))


def targets_of(task: Task, rows: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    if task.kind == "classification":
        return rng.integers(0, 3, rows)
    if task.kind == "multi-label":
        return rng.integers(0, 2, (rows, 3)).astype(np.float32)
    if task.kind == "counts":
        return rng.poisson(2.0, rows).astype(np.float32)
    return task.scaled(rng.uniform(-2, 12, rows))


def trained(kind: Any, task: Task, plan: Any, device: str, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, task.outputs)).to(dtype)
    rows = sum(SIZES)
    records = ClientRecords(
        torch.randn(rows, 4, dtype=dtype),
        torch.as_tensor(targets_of(task, rows)).to(torch.int64 if task.predicts_classes else dtype),
        indices=np.arange(rows),
        offsets=np.concatenate([[0], np.cumsum(SIZES)]),
        dtype=dtype,
        device=device,
    )
    part = seeded(plan, records, 1, optimiser=Optimiser(local_step=ConstantStep(0.3)))
    engine = kind(model, [part], loss=task.loss_on(device))
    if kind is BatchedEngine:
        assert engine.path.kind == "stacked"
    return final(engine).cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TASKS)
def test_batched_clipping_serves_every_task(name: str, device: str, make_plan: Any) -> None:
    # 0.05 clips nearly every gradient and 0.9 few.
    dtype = torch.float64 if device == "cpu" else torch.float32
    near = 1e-9 if device == "cpu" else 1e-3
    for clip in (0.05, 0.9):
        plan = make_plan(SIZES, COHORTS * 4, local_steps=2, clip=clip, noise=[0.0] * 3)
        slow = trained(ReferenceEngine, TASKS[name], plan, device, dtype)
        fast = trained(BatchedEngine, TASKS[name], plan, device, dtype)
        assert float((slow - fast).norm()) < near * float(slow.norm())
        assert float(slow.norm()) > 0.1
