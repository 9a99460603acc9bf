# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpcohort import Population, Training, load_dataset, make_plan, train
from dpcohort.config import loads_config
from dpcohort.engine import Optimiser
from dpcohort.engine._local_rule import ControlVariates, Proximal, local_rule
from dpcohort.errors import InputError
from dpcohort.runs import configured_optimiser, train_side_by_side, verify_run
from dpcohort.runs._job import make_job
from dpcohort.runs._training import train_job

RULES = {"fedprox": Proximal(mu=0.5), "control-variates": ControlVariates()}


def plan_of(**changes: Any) -> Any:
    clients = Population.from_arrays(sizes=[60, 80, 40], epsilon=[8.0, 16.0, 8.0], delta=1e-3)
    settings = {"rounds": 4, "cohort_size": 2, "batch_size": 20, "local_steps": 2, **changes}
    return make_plan(clients, Training(**settings, dimension=650), seed=3)


def job_of(rule: Any, plan: Any = None, data: Any = "digits", **options: Any) -> Any:
    steps = Optimiser(local_step=0.3, local=rule)
    plan = plan or plan_of()
    return make_job(plan, "logistic", data, device="cpu", optimiser=steps, **options)


def weights(run: Any) -> np.ndarray:
    return np.concatenate([part.ravel() for part in run.model.values()])


@pytest.mark.parametrize("name", RULES)
def test_a_private_run_takes_it(name: str) -> None:
    run = train_job(job_of(RULES[name], data=replace(load_dataset("digits"), public=False)))
    assert run.is_private
    assert np.isfinite(weights(run)).all()


@pytest.mark.parametrize("name", RULES)
def test_both_engines_correct_alike(name: str) -> None:
    fast, slow = (train_job(job_of(RULES[name], engine=e)) for e in ("batched", "reference"))
    np.testing.assert_allclose(weights(fast), weights(slow), rtol=1e-4, atol=1e-5)
    assert np.abs(weights(fast) - weights(train_job(job_of(None)))).max() > 1e-4


@pytest.mark.parametrize("name", RULES)
def test_beside_others_it_gives_the_result_it_gives_alone(name: str) -> None:
    jobs = [job_of(RULES[name]), job_of(None, seed=1), job_of(Proximal(mu=2.0), seed=2)]
    data = jobs[0].data
    jobs = [job_of(j.optimiser.local, seed=j.seed) for j in jobs]
    jobs = [
        make_job(j.plan, "logistic", data, device="cpu", optimiser=j.optimiser, seed=j.seed)
        for j in jobs
    ]
    for job, run in zip(jobs, train_side_by_side(jobs), strict=True):
        np.testing.assert_array_equal(weights(run), weights(train_job(job)))


class StopError(Exception):
    pass


class Stop:
    def on_round(self, record: Any, run: Any) -> None:
        if record.round == 1:
            raise StopError


@pytest.mark.parametrize("name", RULES)
def test_a_stopped_run_resumes_with_what_it_kept(name: str, tmp_path: Any) -> None:
    whole = train_job(job_of(RULES[name]))
    with pytest.raises(StopError):
        train_job(job_of(RULES[name]), out=tmp_path / "run", callbacks=[Stop()])
    resumed = train_job(job_of(RULES[name]), out=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(weights(resumed), weights(whole))
    assert resumed.settings["optimiser"]["local"]["rule"] == name
    with pytest.raises(InputError, match="optimiser"):
        train_job(job_of(None), out=tmp_path / "run", resume=True)


def test_control_variates_by_hand() -> None:
    rule, length = ControlVariates(), 0.5
    first = torch.tensor([[1.0], [3.0], [4.0]])  # client 2 was drawn twice
    kept = rule.keep(None, np.array([2, 2, 0]), first, None, length)
    assert kept is not None
    np.testing.assert_array_equal(kept.numpy().ravel(), [8.0, np.nan, 4.0])
    controls = rule.controls(kept, np.array([0, 1, 2, 5]))
    assert controls is not None
    assert controls.ravel().tolist() == [-2.0, 0.0, 2.0, 0.0]  # c = 6
    again = rule.keep(kept, np.array([1]), torch.tensor([[2.0]]), controls[:1], length)
    assert again is not None
    assert again.ravel().tolist() == [8.0, 4.0 + 2.0, 4.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merged_noise": True}, "fedprox.*merged_noise"),
        ({"plan": plan_of(local_steps=1)}, "corrects the steps after the first"),
    ],
)
def test_what_cannot_carry_it_refuses_it_by_name(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train_job(job_of(RULES["fedprox"], **change))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("fedprx", {}, "Did you mean 'fedprox'"),
        ("fedprox", {}, "mu"),
        ("fedprox", {"mu": -1.0}, "mu"),
        ("fedprox", {"rho": 1.0}, "rho"),
    ],
)
def test_names_and_settings_are_checked(name: str, settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        local_rule(name, settings)


def test_it_changes_nothing_that_is_counted(tmp_path: Any) -> None:
    train(plan_of(), "logistic", "digits", device="cpu", out=tmp_path / "plain")
    train_job(job_of(RULES["control-variates"]), out=tmp_path / "rule")
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("plain", "rule")]
    assert ledgers[0] == ledgers[1]
    assert verify_run(tmp_path / "rule").holds


def test_a_config_names_it() -> None:
    text = 'population = { count = 3, size = 50, epsilon = 1 }\n[optimiser]\nlocal = "fedprox"\n'
    config = loads_config(text + "local_settings = { mu = 0.25 }\n")
    assert configured_optimiser(config.optimiser, clip=1.0).local == Proximal(mu=0.25)
