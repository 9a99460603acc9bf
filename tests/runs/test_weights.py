# SPDX-License-Identifier: Apache-2.0
"""A run that starts from somebody's weights says so, keeps the frozen ones, and is checked."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dpcohort.config import load_config
from dpcohort.engine import ConstantStep, Optimiser
from dpcohort.errors import InputError
from dpcohort.models import build_model
from dpcohort.runs import Run, configured_job, train, train_side_by_side, verify_run
from dpcohort.runs._training import train_job

from .conftest import small_plan

CONFIG = """
[population]
clients = "clients.csv"
[training]
rounds = 3
cohort_size = 2
batch_size = 40
dimension = 90
[data]
name = "digits"
[model]
name = "mlp"
options = { hidden = [8] }
weights = "encoder.safetensors"
weights_source = "the digits' first half, public"
frozen = ["1"]
"""


@pytest.fixture
def config(tmp_path):
    whole = build_model("mlp", input_shape=(1, 8, 8), classes=10, seed=9, options={"hidden": [8]})
    encoder = {name: t for name, t in whole.state_dict().items() if name.startswith("1.")}
    save_file(encoder, tmp_path / "encoder.safetensors")
    rows = [f"ward {k},200,{1 + k},1e-5" for k in range(4)]
    (tmp_path / "clients.csv").write_text("\n".join(["id,size,epsilon,delta", *rows]))
    (tmp_path / "my.toml").write_text(CONFIG)
    return load_config(tmp_path / "my.toml")


def test_from_a_config_to_a_receipt(config, tmp_path):
    job = configured_job(config, device="cpu")
    train_job(job, out=tmp_path / "run")
    run, given = Run.load(tmp_path / "run"), load_file(tmp_path / "encoder.safetensors")
    said = json.loads((tmp_path / "run" / "run.json").read_text())["model"]["weights"]
    assert said["source"] == "the digits' first half, public"
    assert said["frozen_parameters"] == 64 * 8 + 8
    receipt = run.receipts()[0]
    assert receipt.weights == said
    assert "the digits' first half, public" in receipt.text()
    assert "520 parameters stay as they are" in receipt.text()
    # To the bit: no noise was added to them.
    for name, tensor in given.items():
        assert (run.model[name] == tensor.numpy()).all()
    assert (run.model["3.weight"] != job.model.state_dict()["3.weight"].numpy()).any()
    assert verify_run(tmp_path / "run").holds


def test_a_receipt_that_hides_them_is_found(config, tmp_path):
    train_job(configured_job(config, device="cpu"), out=tmp_path / "run")
    path = next((tmp_path / "run" / "receipts").glob("*.json"))
    values = json.loads(path.read_text())
    del values["weights"]
    path.write_text(json.dumps(values))
    assert not verify_run(tmp_path / "run").holds


def test_a_run_goes_on_with_the_weights_it_was_begun_with_only(config, tmp_path):
    train_job(configured_job(config, device="cpu"), out=tmp_path / "run")
    other = {name: t + 1 for name, t in load_file(tmp_path / "encoder.safetensors").items()}
    save_file(other, tmp_path / "encoder.safetensors")
    with pytest.raises(InputError, match="was begun with model"):
        train_job(configured_job(config, device="cpu"), out=tmp_path / "run", resume=True)


class Whole(nn.Module):
    """The same layers in a forward of its own: nothing is computed beforehand."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("engine", ["batched", "reference"])
def test_features_computed_once_train_the_same_model(digits, engine):
    options = {"hidden": [8]}
    model = build_model(
        "mlp", input_shape=(1, 8, 8), classes=10, seed=0, options=options, frozen=["1"]
    )
    plan = small_plan(dimension=90)
    common = {
        "device": "cpu",
        "engine": engine,
        "optimiser": Optimiser(local_step=ConstantStep(0.5)),
    }
    once = train(plan, model, digits, **common).model
    each = train(plan, Whole(model), digits, **common).model
    for name, found in once.items():
        assert torch.allclose(
            torch.from_numpy(found), torch.from_numpy(each[f"layers.{name}"]), atol=1e-5
        )


def test_side_by_side_need_the_same_frozen_values(digits):
    from dpcohort.runs._job import make_job

    jobs = [
        make_job(
            small_plan(dimension=90), "mlp", digits, seed=seed, device="cpu", evaluate_every=6,
            model_options={"hidden": [8]}, frozen=["1"],
        )
        for seed in (0, 1)
    ]  # fmt: skip
    with pytest.raises(InputError, match="the same frozen parameters"):
        train_side_by_side(jobs)


def test_a_module_brings_its_own(digits, tmp_path):
    with pytest.raises(InputError, match="for a model given by name"):
        train(small_plan(), nn.Linear(64, 10), digits, frozen=["weight"], device="cpu")
