# SPDX-License-Identifier: Apache-2.0
"""A private training with Newton steps: its promise, its model, and what is told of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.accounting import gaussian_delta
from dpcohort.cli import main
from dpcohort.errors import InputError
from dpcohort.report._model_card import model_card
from dpcohort.report._statement import RunStatement
from dpcohort.runs import configured_job, verify_run
from dpcohort.runs._export import Exported
from dpcohort.runs._prediction import predicted_table
from dpcohort.runs._training import train_job

NEWTON = ["model.options={ second_moments = 0.2 }", "training.sampling_rate=1.0"]


def test_a_private_run_is_verified_used_and_told_like_any_other(table_config, tmp_path):
    job = configured_job(table_config.with_overrides([*NEWTON, "run.simulate="]))
    plan, people = job.plan, job.plan.population
    for k in range(len(people)):  # gradient and second moments are one Gaussian mechanism
        mu = math.sqrt(plan.steps[k]) / plan.noise_multipliers[k]
        assert gaussian_delta(epsilon=people.epsilon[k], mu=mu) <= people.delta[k]
    run = train_job(job, out=tmp_path / "run")
    assert run.is_private
    assert verify_run(tmp_path / "run").holds
    rows = {"age": [20, 90], "smoker": ["yes", "no"]}
    said, _ = predicted_table(run, rows)
    exported = Exported.of(run)
    ((weight, bias, _),) = exported.dense("it")
    assert weight.shape == (2, 4)
    outputs = np.array([[20 / 55 - 1, 0, 1, 0], [90 / 55 - 1, 1, 0, 0]]) @ weight.T + bias
    chances = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert said["probability of yes"] == pytest.approx(chances[:, 1], abs=1e-5)
    mechanism = RunStatement.of(run, run.receipts()[0]).mechanism
    assert "gradients and second moments of rows" in mechanism
    assert "4 rounds of Newton steps" in model_card(run)


def test_newton_steps_are_one_a_round_and_of_a_linear_model(table_config):
    config = table_config.with_overrides(NEWTON)
    with pytest.raises(InputError, match="one Newton step a round"):
        configured_job(config.with_overrides(["training.local_steps=2"]))
    with pytest.raises(InputError, match="Newton steps"):
        configured_job(config.with_overrides(["optimiser.server_momentum=0.5"]))
    with pytest.raises(InputError, match="second_moments"):
        configured_job(config.with_overrides(["model.name=mlp"]))


def test_new_writes_newton_steps_for_a_table_and_one_line_takes_them_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    rows = [f"{rng.integers(0, 99)},{'ab'[i % 2]},{'yn'[i % 3 > 0]}" for i in range(600)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ward,sick", *rows]))
    (tmp_path / "c.csv").write_text("id,epsilon,delta\na,4,1e-5\nb,2,1e-5\n")
    asked = ["--label", "sick", "--client", "ward", "--clients", "c.csv", "--public"]
    assert main(["new", "my.toml", "--from", "t.csv", *asked]) == 0
    text = (tmp_path / "my.toml").read_text()
    assert "\ndimension" not in text
    (line,) = [one for one in text.splitlines() if "second_moments" in one]
    assert "without this line plain ones" in line
    assert main(["plan", "my.toml", "-o", "newton.json"]) == 0
    (tmp_path / "my.toml").write_text(text.replace(line + "\n", ""))
    assert main(["plan", "my.toml", "-o", "plain.json"]) == 0
