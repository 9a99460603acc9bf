# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpcohort.data import load_partition
from dpcohort.engine import EngineState
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.plan import Plan
from dpcohort.runs import ConfigSource, verify_run
from dpcohort.runs._job import make_job
from dpcohort.runs._recorder import Recorder

from .conftest import small_plan


@pytest.fixture
def job(plan, digits):
    job = make_job(plan, "logistic", digits, device="cpu")
    return replace(job, source=ConfigSource("[training]\nrounds = 6\n"))


def test_settings_come_last_so_that_half_a_start_is_no_run(job, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise InputError.because("the disk is full")

    monkeypatch.setattr("dpcohort.runs._recorder.environment", fail)
    with pytest.raises(InputError):
        Recorder(job, tmp_path / "run")
    assert (tmp_path / "run" / "plan.json").exists()
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_seeded_round_is_counted_once_and_a_private_one_refused(job, plan, secret):
    recorder = Recorder(job)
    cohort = plan.schedule.cohorts[0]
    recorder.count(0, cohort)
    recorder.count(0, cohort)
    assert int(recorder.run.ledger.draws.sum()) == plan.training.cohort_size
    private = Recorder(make_job(plan, "logistic", secret, device="cpu"))
    private.count(0, cohort)
    with pytest.raises(BudgetExceededError):
        private.count(0, cohort)


STATE = {"parameters": (650,), "momentum": (650,), "average": (650,), "memory": (2, 650)}


def kept_and_read_again(job, path, shapes) -> EngineState:
    """A state through a checkpoint, as a run that goes on finds it."""
    recorder = Recorder(job, path)
    recorder.begin(EngineState(torch.zeros(650)))
    recorder.count(0, job.plan.schedule.cohorts[0])
    held = {name: torch.randn(shape) for name, shape in shapes.items()}
    vector = held.pop("parameters")
    recorder.keep(EngineState(vector, 1, held))
    recorder.close()
    again = Recorder(job, path, resume=True)
    try:
        found = again.start(EngineState(torch.zeros(650)))
    finally:
        again.close()
    assert torch.equal(found.parameters, vector)
    assert found.tensors.keys() == held.keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in held.items())
    return found


@pytest.mark.parametrize("names", [("parameters",), ("parameters", "average"), tuple(STATE)])
def test_a_checkpoint_brings_everything_back(job, tmp_path, names):
    found = kept_and_read_again(job, tmp_path / "run", {name: STATE[name] for name in names})
    assert found.next_round == 1


@pytest.mark.parametrize(
    "shapes",
    [
        {"parameters": (3,)},
        {"parameters": (650, 1)},
        {"parameters": (650,), "momentum": (3,)},
        {"parameters": (650,), "memory": (650,)},
        {"parameters": (650,), "memory": (2, 3)},
    ],
)
def test_a_state_of_another_model_is_refused(job, tmp_path, shapes):
    with pytest.raises(InputError, match="another model"):
        kept_and_read_again(job, tmp_path / "run", shapes)


def _layer_twice() -> nn.Module:
    layer = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer, nn.Linear(64, 10))


def _tied_weight() -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Linear(64, 10))


@pytest.mark.parametrize("build", [_layer_twice, _tied_weight])
def test_a_tied_tensor_is_the_trained_one_under_all_its_names(build, digits):
    model = build()
    dimension = sum(p.numel() for p in model.parameters())
    job = make_job(small_plan(dimension=dimension), model, digits, device="cpu")
    recorder = Recorder(job)
    recorder.finish(EngineState(torch.arange(dimension, dtype=torch.float32)))
    saved = recorder.run.model
    assert set(saved) == set(model.state_dict())
    np.testing.assert_array_equal(saved["1.weight"], np.arange(4096).reshape(64, 64))
    np.testing.assert_array_equal(saved["3.weight"], saved["1.weight"])


@pytest.mark.parametrize("name", ["plan.json", "partition.npz"])
@pytest.mark.parametrize("how", ["one bit flipped", "gone"])
def test_a_damaged_plan_or_partition_is_written_again(job, tmp_path, name, how):
    Recorder(job, tmp_path / "run").close()
    path = tmp_path / "run" / name
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    again = Recorder(job, tmp_path / "run", resume=True)
    again.close()
    assert [words for words in again.run.warnings if name in words]
    assert Plan.load(tmp_path / "run" / "plan.json").sha256 == job.plan.sha256
    assert load_partition(tmp_path / "run" / "partition.npz").sha256 == job.partition.sha256


def test_a_crash_while_receipts_are_made_leaves_a_run_that_verifies(job, tmp_path, monkeypatch):
    recorder = Recorder(job, tmp_path / "run")
    monkeypatch.setattr(recorder.run, "write_receipts", _no_room)
    with pytest.raises(InputError):
        recorder.finish(EngineState(torch.zeros(650)))
    recorder.close()
    assert verify_run(tmp_path / "run").holds


def _no_room():
    raise InputError.because("the disk is full")
