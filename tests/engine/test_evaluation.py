# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine import evaluator_on
from dpcohort.engine.clipping import FlatLayout
from dpcohort.errors import InputError
from dpcohort.tasks import Task


def test_chunks_give_what_one_pass_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpcohort.engine._rounds._AT_A_TIME", {"cpu": 7})
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 4))
    inputs, targets = torch.randn(23, 1, 5, 5), torch.randint(0, 3, (23,))
    outputs = model(inputs).detach()
    vector = FlatLayout(model).flatten(model)
    evaluator = evaluator_on(model, inputs, targets)
    result = evaluator(vector)
    hits = outputs.argmax(1) == targets
    assert result.accuracy == pytest.approx(float(hits.double().mean()))
    assert result.loss == pytest.approx(float(F.cross_entropy(outputs.double(), targets)))
    assert sum(result.class_counts) == 23
    assert len(result.class_accuracy) == 4
    assert math.isnan(result.class_accuracy[3])
    for k in range(3):
        assert result.class_accuracy[k] == pytest.approx(float(hits[targets == k].double().mean()))


def test_a_test_set_must_fit() -> None:
    with pytest.raises(InputError, match="test set"):
        evaluator_on(nn.Linear(2, 2), torch.zeros(3, 2), [0])
    with pytest.raises(InputError, match="test set"):
        evaluator_on(nn.Linear(2, 2), torch.zeros(0, 2), [])


def test_what_predicts_numbers_is_judged_by_its_own_metric() -> None:
    task = Task(kind="regression", outputs=1, bounds=(0.0, 10.0))
    inputs, targets = torch.tensor([[0.5], [-0.5]]), torch.tensor([0.5, -0.5])
    evaluate = evaluator_on(nn.Linear(1, 1), inputs, targets, task=task)
    right, wrong = (evaluate(torch.tensor([slope, 0.0])) for slope in (1.0, -1.0))
    assert math.isnan(right.accuracy)
    assert right.class_accuracy == ()
    assert right.loss == pytest.approx(0.0) != wrong.loss
    assert right.value != wrong.value


def test_token_ids_stay_whole_numbers() -> None:
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten())
    found = evaluator_on(model, torch.tensor([[1], [4]]), [0, 1])
    table = torch.zeros(5, 2)
    table[1, 0] = table[4, 1] = 1.0
    assert found(table.flatten()).accuracy == 1.0
