# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpcohort import Population, Training, make_plan, train
from dpcohort.config import load_config
from dpcohort.data import Normalisation, dataset_from_arrays, load_dataset
from dpcohort.errors import InputError
from dpcohort.models import (
    FixedFeatures,
    build_features,
    build_model,
    parameter_count,
    precompute_features,
    split_features,
)
from dpcohort.models._features import _COMPUTED
from dpcohort_lab.features import OrientedFeatures

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "configs").glob("*-features.toml"))


def small(records=7, seed=0):
    rng = np.random.default_rng(seed)
    return dataset_from_arrays(
        "small",
        train_inputs=rng.integers(0, 256, (records, 1, 12, 12), dtype=np.uint8),
        train_labels=np.arange(records) % 3,
        test_inputs=rng.integers(0, 256, (4, 1, 12, 12), dtype=np.uint8),
        test_labels=[0, 1, 2, 0],
        classes=3,
        normalisation=Normalisation(scale=255, mean=(0.3,), std=(0.4,)),
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("scatering", {}, "one of none, oriented, scattering.*Did you mean 'scattering'"),
        ("oriented", {"scale": 2}, "no option 'scale'.*Did you mean 'scales'"),
        ("scattering", {"centring": "cell"}, "scattering features have no option 'centring'"),
        ("oriented", {"centring": "cel"}, "Did you mean 'cell'"),
        ("none", {"cells": 4}, "cells is for features"),
        (None, {}, "features = None"),
    ],
)
def test_bad_requests_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        build_features(name, (1, 12, 12), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"features": "oriented", "scales": 10**12},
        {"features": "scattering", "scales": 10**12},
        {"features": "oriented", "orientations": 10**12},
    ],
)
def test_a_size_is_looked_at_before_room_is_made_for_it(options):
    with pytest.raises(InputError, match="at most"):
        build_model("logistic", input_shape=(1, 28, 28), classes=10, seed=0, options=options)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 500])
def test_precomputed_features_are_those_of_the_normalised_images(batch_size):
    data, features = small(), OrientedFeatures((1, 12, 12), cells=3)
    found = precompute_features(data, features, batch_size=batch_size)
    for old, new in (
        (data.train_inputs, found.train_inputs),
        (data.test_inputs, found.test_inputs),
    ):
        expected = features(torch.from_numpy(data.normalised(old))).numpy()
        assert new.dtype == np.float32
        assert np.allclose(new, expected, atol=1e-6)
    assert found.name == "small+OrientedFeatures"
    assert found.classes == data.classes
    assert np.array_equal(found.train_labels, data.train_labels)
    assert np.array_equal(found.normalised(found.train_inputs), found.train_inputs)


def test_learnt_features_are_refused():
    with pytest.raises(InputError, match="Linear has parameters"):
        precompute_features(small(), nn.Linear(12, 4))


def test_a_split_model_gives_the_answers_of_the_whole():
    data = small()
    options = {"features": "oriented", "cells": 3, "hidden": [6], "activation": "tanh"}
    whole = build_model("mlp", input_shape=(1, 12, 12), classes=3, seed=4, options=options)
    head, features = split_features(whole, data)
    images = torch.from_numpy(data.normalised(data.train_inputs))
    assert torch.allclose(whole(images), head(torch.from_numpy(features.train_inputs)), atol=1e-6)
    assert head.state_dict().keys() == whole.state_dict().keys()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_plan_for_the_dimension_that_is_trained(path):
    config = load_config(path)
    name, options = config.model.name, config.model.options
    model = build_model(name, input_shape=(1, 28, 28), classes=10, seed=0, options=options)
    assert isinstance(model[0], FixedFeatures)
    assert config.training.dimension == parameter_count(model)


def test_computed_features_go_when_the_data_go():
    data = small()
    options = {"features": "oriented", "cells": 3}
    model = build_model("logistic", input_shape=(1, 12, 12), classes=3, seed=0, options=options)
    split_features(model, data)
    before = len(_COMPUTED)
    del data
    gc.collect()
    assert len(_COMPUTED) == before - 1


def test_training_on_features_is_training_on_images():
    digits = load_dataset("digits")
    options = {"features": "oriented", "cells": 4}
    clients = Population.from_arrays(sizes=[400] * 3, epsilon=[1.0, 4.0, 8.0], delta=1e-5)
    settings = Training(rounds=3, cohort_size=2, batch_size=40, clip=0.5, dimension=2730)
    plan = make_plan(clients, settings, seed=0)
    whole = build_model("logistic", input_shape=(1, 8, 8), classes=10, seed=0, options=options)
    head, data = split_features(whole, digits)
    on_images = train(plan, "logistic", digits, device="cpu", model_options=options)
    on_features = train(plan, head, data, device="cpu")
    assert on_features.test_accuracy == pytest.approx(on_images.test_accuracy, abs=0.01)
    assert on_features.test.loss == pytest.approx(on_images.test.loss, rel=1e-4)
