# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

import pytest

from dpcohort.audit import Finding, Isolation
from dpcohort.audit import _suite as suite
from dpcohort.audit._under_test import MODEL_PLACES
from dpcohort.cli import _audit as audit_command

STEP = """
import numpy as np

def step(gradients, *, clip, noise_multiplier, batch_size, rng_seed, noise=1.0):
    rng = np.random.default_rng(rng_seed)
    rows = gradients[rng.random(len(gradients)) < batch_size / len(gradients)]
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.where(np.isfinite(norms), rows, 0) / np.maximum(1, np.nan_to_num(norms) / clip)
    spread = noise * noise_multiplier * clip
    return (rows.sum(0) + spread * rng.standard_normal(rows.shape[1])) / batch_size

def quiet(gradients, *, rng_seed, **settings):
    return step(gradients, rng_seed=rng_seed, noise=0.5, **settings)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"audited_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.fixture
def told(monkeypatch):
    """What the tests were asked to look at; all of it passes but what is in ``refuse``."""
    seen = {"refuse": set()}

    def audit_training(training, claim, *, on_finding, **settings):
        name = "private" if claim.private else "simulation"
        seen.setdefault(name, []).append((training, claim, settings))
        finding = Finding(
            test="A noise law", passed=name not in seen["refuse"], detail="[seen]",
            false_alarm_rate=settings["false_alarm_rate"], measured={"size": float("nan")},
        )  # fmt: skip
        on_finding(finding)
        return [finding]

    monkeypatch.setattr(suite, "audit_training", audit_training)
    return seen


def test_a_simulation_of_the_users_own(terminal, module):
    found = terminal.json("audit", "--step", f"{module}:step", "--simulation")
    assert found["passed"]
    assert found["false_alarm_rate"] < 1e-5
    (training,) = found["trainings"]
    assert [finding["test"][0] for finding in training["findings"]] == list("ABCDEJK")
    last = training["findings"][-1]["measured"]
    assert last["epsilon lower bound"] < last["epsilon certified"]


def test_a_step_with_half_its_noise_is_refuted(terminal, module):
    shown = terminal("audit", "--step", f"{module}:quiet", "--simulation", code=1)
    assert "REFUTED" in shown
    assert f"{module}:quiet: A noise law" in shown
    assert "with probability at most" in shown


def test_our_own_trainings_are_audited_as_they_are_deployed(terminal, told):
    shown = terminal("audit")
    assert "no claim refuted" in shown
    assert "[seen]" in shown
    assert len(told["private"]) == 3
    assert len(told["simulation"]) == 1
    terminal("audit", "--full")
    assert len(told["private"]) == 7  # the reference as well
    terminal("audit", "--only", "guard,simulation", "--full", "--normals", 1000, "--clip", 0.5)
    _, claim, settings = told["private"][-1]
    assert claim.clip == 0.5
    assert settings["full"]
    assert settings["normals"] == 1000
    assert len(told["private"]) == 8


def test_all_trainings_are_audited_by_persons(terminal, told):
    terminal("audit", "--unit", "person")
    assert len(told["private"]) == 3
    assert {claim.rows for _, claim, _ in told["private"]} == {40}


def test_a_step_over_persons_is_told_whose_rows_are(terminal, module):
    terminal("audit", "--unit", "person", "--step", f"{module}:step", code=2)
    assert "takes persons=" in terminal.errors


def test_one_refuted_claim_is_enough(terminal, told):
    told["refuse"] = {"simulation"}
    found = json.loads(terminal("audit", "--json", code=1))
    assert found["refuted"] == ["simulation: A noise law"]
    assert found["trainings"][0]["findings"][0]["measured"] == {"size": None}


def test_models_and_losses_of_others(terminal, monkeypatch):
    seen = []

    def isolation(subject, adversaries, *, rows, full, on_case):
        seen.append((subject.place, len(list(adversaries)), full, rows))
        found = [
            Isolation(name=name, verdict=verdict, moved=moved, detail="[seen]")
            for name, verdict, moved in (
                ("Kind", "held", 0.99), ("Hostile", "BROKEN" if full else "refused", math.inf),
            )
        ]  # fmt: skip
        on_case(found[0])
        return found

    monkeypatch.setattr(audit_command, "isolation", isolation)
    shown = terminal("audit", "--adversarial")
    assert "no bound broken" in shown
    assert "1 of 2" in shown
    assert [place for place, *_ in seen] == list(MODEL_PLACES)
    losses = {place: many for place, many, *_ in seen}
    assert losses["frozen"] < losses["guard"]
    shown = terminal("audit", "--adversarial", "--full", "--only", "guard,frozen", code=1)
    assert "BROKEN" in shown
    assert "guard: Hostile" in shown
    found = json.loads(terminal("audit", "--adversarial", "--full", "--json", code=1))
    assert not found["passed"]
    assert found["places"]["guard"][1]["moved"] is None
    assert {rows for *_, rows in seen} == {1}
    seen.clear()
    shown = terminal("audit", "--adversarial", "--unit", "person")
    assert "C for one person with 3 rows" in shown
    assert [(place, rows) for place, *_, rows in seen] == [(p, 3) for p in MODEL_PLACES]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--adversarial", "--step", "math:sqrt"], "--adversarial"),
        (["--adversarial", "--only", "simulation"], "guard-reports"),
        (["--step", "no_such_module:step"], "Importing no_such_module failed"),
        (["--step", "math:sqrt"], "rng_seed"),
        (["--only", "batch"], "batched"),
        (["--only", "guard", "--step", "math:sqrt"], "--only"),
        (["--sampler", "none"], "poisson, fixed"),
        (["--device", "tpu"], "cuda"),
        (["--noise-multiplier", "0"], "above 0"),
        (["--simulation"], "--step"),
        (["--unit", "client"], "record, person"),
    ],
)
def test_bad_input_is_told(terminal, arguments, message):
    terminal("audit", *arguments, code=2)
    assert message in terminal.errors
