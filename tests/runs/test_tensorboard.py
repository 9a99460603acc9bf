# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from types import ModuleType

import pytest

from dpcohort.errors import DataMissingError
from dpcohort.runs import TensorBoardLog, train


class Writer:
    """Stands in for the one of TensorBoard."""

    def __init__(self, folder: str) -> None:
        self.rows: list[tuple[str, int]] = []
        self.times: set[float | None] = set()

    def add_scalar(self, name: str, value: float, step: int, walltime: float | None = None) -> None:
        assert float(value) == value
        self.rows.append((name, step))
        self.times.add(walltime)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.rows.append(("closed", 0))


@pytest.fixture
def stand_in(monkeypatch):
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)


def test_public_curves_only(plan, digits, tmp_path, stand_in):
    log = TensorBoardLog(tmp_path)
    train(plan, "logistic", digits, device="cpu", evaluate_every=3, callbacks=[log])
    log.close()
    rows = log._writer.rows
    assert {name for name, _ in rows} == {
        "noise/largest",
        "noise/smallest",
        "accuracy/model",
        "loss/model",
        "closed",
    }
    assert [step for name, step in rows if name == "accuracy/model"] == [3, 6]
    assert log._writer.times == {None}  # the writer's own clock


def test_times_of_a_private_run_are_not_written(plan, secret, tmp_path, stand_in):
    log = TensorBoardLog(tmp_path)
    settings = {"device": "cpu", "evaluate_every": 3}
    train(plan, "logistic", secret, **settings, callbacks=[log])
    assert log._writer.times == {0.0}


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(DataMissingError, match=r"dpcohort\[tensorboard\]"):
        TensorBoardLog(tmp_path)
