# SPDX-License-Identifier: Apache-2.0
"""A guard and a kit with weights from a file: the agreed ones, or none."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from dpcohort import Population, Training, make_plan
from dpcohort.deploy.flower import Federation, write_kit
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._record import FederatedJob
from dpcohort.deploy.guard import GuardTerms, ModelTerms
from dpcohort.deploy.guard._files import GuardedData
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.errors import DataMissingError, InputError, VerificationError
from dpcohort.models import build_model

MLP = {"name": "mlp", "input_shape": (5,), "classes": 3, "options": {"hidden": [4]}}


@pytest.fixture
def model(tmp_path):
    whole = build_model("mlp", input_shape=(5,), classes=3, seed=7, options={"hidden": [4]})
    path = tmp_path / "start.safetensors"
    save_file(whole.state_dict(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return ModelTerms(**MLP, weights=str(path), weights_sha256=digest, frozen=("1",))


def _data():
    dice = np.random.default_rng(0)
    return GuardedData(dice.normal(size=(6, 5)).astype(np.float32), np.arange(6) % 3, "")


def test_a_guard_trains_on_the_agreed_frozen_values(model, tmp_path):
    training = LocalTraining(model, _data())
    assert training.dimension == 3 * 4 + 3
    # Frozen values are never sent: a guard that had others would be another model.
    other = {name: tensor + 1 for name, tensor in load_file(model.weights).items()}
    save_file(other, tmp_path / "other.safetensors")
    digest = hashlib.sha256((tmp_path / "other.safetensors").read_bytes()).hexdigest()
    changed = model.model_copy(
        update={"weights": str(tmp_path / "other.safetensors"), "weights_sha256": digest}
    )
    assert LocalTraining(changed, _data()).layout != training.layout
    assert changed.sha256() != model.sha256()


def test_another_file_than_the_agreed_one_is_refused(model, tmp_path):
    save_file({"1.bias": load_file(model.weights)["1.bias"]}, model.weights)
    with pytest.raises(VerificationError, match="was agreed on"):
        LocalTraining(model, _data())
    gone = model.model_copy(update={"weights": str(tmp_path / "gone")})
    with pytest.raises(DataMissingError, match="cannot be read"):
        LocalTraining(gone, _data())


def test_terms_that_leave_open_which_weights_are_refused(model):
    with pytest.raises(InputError, match="go together"):
        ModelTerms(**MLP, weights=model.weights)
    with pytest.raises(InputError, match="must be the same everywhere"):
        ModelTerms(**MLP, frozen=("1",))
    plain = ModelTerms(name="logistic", input_shape=(64,), classes=10)
    assert plain.sha256().startswith("e6edb7c2")  # as before there were any


def test_a_kit_ships_the_file_to_server_and_clients(model, tmp_path):
    people = Population.from_arrays(sizes=[60, 60], epsilon=[2.0, 4.0], delta=1e-5)
    settings = Training(rounds=4, cohort_size=2, batch_size=6, dimension=15)
    plan = make_plan(people, settings, seed=0)
    kit = write_kit(tmp_path / "kit", plan=plan, model=model, run="spring", trial=True)
    terms_file = client_folder(kit, people.ids[0]) / "terms.toml"
    found = GuardTerms.from_toml(terms_file).model
    assert found.weights == str(terms_file.resolve().parent / "weights.safetensors")
    assert found.sha256() == model.sha256()
    federation = Federation.load(kit / "server" / "federation.toml")
    assert federation.model.sha256() == model.sha256()
    job = FederatedJob.of(federation)
    assert job.layout == LocalTraining(found, _data()).layout
    assert job.settings()["model"]["weights"]["frozen"] == ["1"]
    # The initial trained weights are the file's, too.
    assert np.array_equal(
        job.initial()[:12].numpy(), load_file(model.weights)["3.weight"].flatten()
    )
