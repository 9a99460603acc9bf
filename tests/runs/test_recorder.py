# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dpcohort.engine import EngineState
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.runs.job import make_job
from dpcohort.runs.recorder import Recorder


@pytest.fixture
def job(plan, digits):
    return make_job(plan, "logistic", digits, device="cpu", config="[training]\nrounds = 6\n")


def test_settings_come_last_so_that_half_a_start_is_no_run(job, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise InputError.because("the disk is full")

    monkeypatch.setattr("dpcohort.runs.recorder.open_ledger", fail)
    with pytest.raises(InputError):
        Recorder(job, tmp_path / "run")
    assert (tmp_path / "run" / "plan.json").exists()
    assert not (tmp_path / "run" / "run.json").exists()


def test_the_configuration_is_kept(job, tmp_path):
    Recorder(job, tmp_path / "run").close()
    assert (tmp_path / "run" / "config.toml").read_text() == job.config
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    assert settings["plan"] == job.plan.sha256
    assert settings["optimiser"]["local_step"] == {"kind": "ConstantStep", "size": 0.1}


def test_a_seeded_round_is_counted_once_and_a_private_one_refused(job, plan, digits):
    recorder = Recorder(job)
    recorder.before_round(0)
    recorder.before_round(0)
    assert int(recorder.run.ledger.draws.sum()) == plan.training.cohort_size
    private = Recorder(make_job(plan, "logistic", digits, device="cpu", private_entropy=True))
    private.before_round(0)
    with pytest.raises(BudgetExceededError):
        private.before_round(0)


def test_a_state_of_another_model_is_refused(job, tmp_path):
    recorder = Recorder(job, tmp_path / "run")
    recorder.before_round(0)
    recorder.keep(EngineState(torch.zeros(3), next_round=1))
    recorder.close()
    again = Recorder(job, tmp_path / "run", resume=True)
    with pytest.raises(InputError, match="another model"):
        again.start(EngineState(torch.zeros(650)))
    again.close()


def test_resume_without_a_run_begins_one(job, tmp_path):
    recorder = Recorder(job, tmp_path / "run", resume=True)
    fresh = EngineState(torch.zeros(650))
    assert recorder.start(fresh) is fresh
    recorder.finish(fresh)
    np.testing.assert_array_equal(recorder.run.model["1.bias"], np.zeros(10, np.float32))
