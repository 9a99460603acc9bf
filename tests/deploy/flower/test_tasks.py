# SPDX-License-Identifier: Apache-2.0
"""A number predicted over guards: the task travels in the terms, the judgement is the server's."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort.deploy.flower import federate, write_kit
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._trial import write_client_data
from dpcohort.deploy.guard import ModelTerms
from dpcohort.errors import InputError
from dpcohort.plan import make_plan
from dpcohort.runs import Run, verify_run
from dpcohort.training import Training

from .conftest import Small

STAY = {"kind": "regression", "loss": "squared", "bounds": [0.0, 20.0]}


@pytest.fixture
def stays(tmp_path, request):
    moments = getattr(request, "param", 0.0)
    options = {"second_moments": moments} if moments else {}
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 3)).astype(np.float32)
    y = 10 + 6 * x[:, 0] + rng.normal(0, 0.5, 500)
    test = tmp_path / "test.npz"
    np.savez(test, train_inputs=x[:1], train_labels=y[:1], test_inputs=x[400:], test_labels=y[400:])
    population = Population.from_arrays(
        ids=["ward", "lab"], sizes=[200, 200], epsilon=[8.0, 8.0], delta=1e-5
    )
    training = Training(
        rounds=6, cohort_size=3, batch_size=100, clip=0.5, dimension=16 if moments else 4
    )
    settings = {
        "plan": make_plan(population, training, seed=3),
        "model": ModelTerms(
            name="logistic", input_shape=(3,), classes=1, options=options, task=STAY
        ),
        "run": "spring",
        "optimiser": {"learning_rate": 1.0},
        "test": str(test),
        "timeout": 5.0,
        "trial": True,
    }
    kit = write_kit(tmp_path / "kit", **settings)
    write_client_data(kit, {"ward": (x[:200], y[:200]), "lab": (x[200:400], y[200:400])})
    return Small(kit, settings)


@pytest.mark.parametrize("stays", [0.0, 0.3], indirect=True, ids=["plain", "Newton"])
def test_a_number_is_learnt_over_guards_and_judged(stays, tmp_path):
    with stays.guards() as guards:
        transport = guards.transport(stays.federation)
        run = federate(stays.federation, transport, out=tmp_path / "run", poll=0.0)
    assert run.check.is_better
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["rmse"] < result["trivial"]["rmse"]
    assert verify_run(tmp_path / "run").holds
    assert Run.load(tmp_path / "run").metric.name == "rmse"
    if "moments.weight" in run.model:  # of inputs between -1 and 1, with its noise
        assert np.diag(run.model["moments.weight"]) == pytest.approx(1 / 3, abs=0.2)


def test_an_owner_who_named_another_loss_is_asked_nothing(stays, tmp_path):
    terms = client_folder(stays.kit, "lab") / "terms.toml"
    terms.write_text(terms.read_text().replace('loss = "squared"', 'loss = "huber"'))
    terms.chmod(0o600)
    with stays.guards() as guards:
        transport = guards.transport(stays.federation)
        with pytest.raises(InputError, match="another model than logistic with the loss squared"):
            federate(stays.federation, transport, out=tmp_path / "run", poll=0.0)
