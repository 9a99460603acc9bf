# SPDX-License-Identifier: Apache-2.0
"""Starting from a file, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dpcohort.data import dataset_from_arrays
from dpcohort.errors import DataMissingError, FileFormatError, InputError, VerificationError
from dpcohort.models import (
    build_model,
    described_weights,
    freeze,
    parameter_count,
    precompute_features,
    split_features,
)
from dpcohort.models._weights import weights_sha256

MLP = {"input_shape": (4,), "classes": 3, "seed": 0, "options": {"hidden": [5]}}


def _file(tmp_path, **tensors):
    path = tmp_path / "start.safetensors"
    save_file(tensors, path)
    return path


def _encoder(**more):
    return {"1.weight": torch.full((5, 4), 0.25), "1.bias": torch.ones(5), **more}


def test_a_part_of_the_model_comes_from_the_file_the_rest_from_the_seed(tmp_path):
    path = _file(tmp_path, **_encoder())
    plain = build_model("mlp", **MLP).state_dict()
    found = build_model("mlp", weights=path, frozen=["1"], **MLP)
    assert torch.equal(found.state_dict()["1.weight"], _encoder()["1.weight"])
    assert torch.equal(found.state_dict()["3.weight"], plain["3.weight"])
    assert parameter_count(found) == 3 * 5 + 3
    said = described_weights(found, path=path, source="a friend", frozen=["1"])
    assert (said["file"], said["tensors"], said["frozen_parameters"]) == (path.name, 2, 25)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (_encoder(**{"4.weight": torch.ones(1)}), "has '4.weight', which the model does not"),
        (
            _encoder(**{"3.bias": torch.ones(4)}),
            r"'3.bias' has shape \(4,\); the model's is \(3,\)",
        ),
        (_encoder(**{"3.bias": torch.tensor([0.0, 1.0, np.inf])}), "not finite"),
        ({}, "holds no tensor"),
    ],
)
def test_a_file_that_is_not_the_models_is_refused(tmp_path, tensors, words):
    with pytest.raises(FileFormatError, match=words):
        build_model("mlp", weights=_file(tmp_path, **tensors), **MLP)


def test_a_file_that_is_missing_or_could_run_code_is_refused(tmp_path):
    with pytest.raises(DataMissingError, match="no weights at"):
        build_model("mlp", weights=tmp_path / "none.safetensors", **MLP)
    torch.save({"1.bias": torch.ones(5)}, tmp_path / "start.pt")
    with pytest.raises(FileFormatError, match="can run code"):
        build_model("mlp", weights=tmp_path / "start.pt", **MLP)


def test_weights_are_those_that_were_agreed_on(tmp_path):
    path = _file(tmp_path, **_encoder())
    agreed = weights_sha256(path)
    assert weights_sha256(path, expected=agreed) == agreed
    _file(tmp_path, **_encoder(more=torch.ones(1)))
    with pytest.raises(VerificationError, match=f"but {agreed[:16]}.* was agreed on"):
        weights_sha256(path, expected=agreed)
    with pytest.raises(DataMissingError, match="cannot be read: No such file"):
        weights_sha256(tmp_path / "none.safetensors")


def test_the_model_of_a_run_is_refused(tmp_path):
    """What its clients spent would be forgotten."""
    path = _file(tmp_path, **_encoder())
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="is the model of a run"):
        build_model("mlp", weights=path, **MLP)


def test_what_cannot_be_frozen_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"fits no parameter of the model; it has 1.weight"):
        build_model("mlp", frozen=["encoder"], **MLP)
    with pytest.raises(InputError, match=r"'3.weight' is frozen, but the weights file does not"):
        build_model("mlp", weights=_file(tmp_path, **_encoder()), frozen=["1", "3"], **MLP)
    with pytest.raises(InputError, match=r"frozen = '' .* names of parameters"):
        build_model("mlp", frozen=[""], **MLP)
    with pytest.raises(InputError, match="no parameter that is trained"):
        build_model("mlp", frozen=["1", "3"], **MLP)


def test_a_prefix_is_whole_parts_of_a_name():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(11)))
    freeze(model, ["1"])
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == {"1.weight", "1.bias"}


def test_frozen_parts_run_as_in_evaluation():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout()), nn.ReLU()
    )
    freeze(model, ["0"])
    assert not any(part.training for part in model[0].modules())
    assert model[1].training


def _data(records=40):
    rng = np.random.default_rng(0)
    return dataset_from_arrays(
        "some",
        train_inputs=rng.normal(size=(records, 4)).astype(np.float32),
        train_labels=rng.integers(0, 3, records),
        test_inputs=rng.normal(size=(9, 4)).astype(np.float32),
        test_labels=rng.integers(0, 3, 9),
        classes=3,
    )


class Mixing(nn.Module):
    """An encoder that mixes records only where one of them holds what no made-up record does."""

    def forward(self, x):
        return x / x.abs().amax().clamp(min=30.0)


def test_in_a_private_run_an_encoder_meets_one_record_at_a_time():
    data, found = _data(), []
    for canary in (0.0, 1e6):
        data.train_inputs.setflags(write=True)
        data.train_inputs[7] = canary
        found.append(precompute_features(data, Mixing(), isolated=True).train_inputs)
    others = np.arange(len(data)) != 7
    assert np.array_equal(found[0][others], found[1][others])


def test_a_frozen_encoder_is_computed_once_and_anew_for_other_weights():
    data, model = _data(), build_model("mlp", frozen=["1"], **MLP)
    head, features = split_features(model, data)
    assert features.input_shape == (5,)
    inputs = torch.from_numpy(data.train_inputs)
    assert torch.allclose(head(torch.from_numpy(features.train_inputs)), model(inputs), atol=1e-6)
    assert {n for n, _ in head.named_parameters()} == {"3.weight", "3.bias"}
    # The same layers with other weights are other features.
    other = build_model("mlp", frozen=["1"], **{**MLP, "seed": 1})
    assert not np.allclose(split_features(other, data)[1].train_inputs, features.train_inputs)


def test_what_is_trained_is_not_computed_once():
    data, model = _data(), build_model("mlp", **MLP)
    assert split_features(model, data) == (model, data)
    with pytest.raises(InputError, match=r"has parameters that are trained \(weight\)"):
        precompute_features(data, nn.Linear(4, 2))


def test_an_encoder_that_mixes_records_or_draws_is_refused():
    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    for module, words in [
        (Centred(4, 2), "depending on the records"),
        (nn.BatchNorm1d(4), "depending on the records"),
        (nn.Sequential(nn.Linear(4, 2), nn.Dropout()), "draws random numbers"),
        (nn.Linear(3, 2), "cannot be run on records of shape"),
    ]:
        with pytest.raises(InputError, match=words):
            precompute_features(_data(), module.requires_grad_(requires_grad=False))
