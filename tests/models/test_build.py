# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn

from dpcohort import plugin
from dpcohort.consent import allow_code
from dpcohort.errors import InputError
from dpcohort.models import MODEL_NAMES, FixedFeatures, build_model, parameter_count

SHAPES = {"cifar-cnn": (3, 32, 32)}


@plugin("features")
class Cells(FixedFeatures):
    """Means over squares of pixels."""

    def __init__(self, input_shape, *, side=4):
        super().__init__()
        self.side, self.width = side, math.prod(input_shape) // side**2

    def forward(self, images):
        return nn.functional.avg_pool2d(images, self.side).flatten(1)


CELLS = f"{__name__}:Cells"


def build(name, seed=0, **changes):
    shape = SHAPES.get(name, (1, 28, 28))
    return build_model(name, **{"input_shape": shape, "classes": 10, "seed": seed, **changes})


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_weights_depend_on_the_seed_alone_and_the_global_state_stays(name):
    before = torch.get_rng_state()
    first = build(name)
    torch.rand(7)
    second, other = build(name), build(name, seed=1)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True)]
    assert all(same) if name == "logistic" else not any(same)
    torch.set_rng_state(before)
    build(name)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_weights_of_a_seed_are_the_ones_they_were():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(17)
        expected = torch.nn.Linear(6, 4)
    model = build_model("mlp", input_shape=(6,), classes=3, seed=17, options={"hidden": [4]})
    assert torch.equal(model[1].weight, expected.weight)


@pytest.mark.parametrize(
    ("name", "options", "trained"),
    [
        ("logistic", {"features": CELLS}, 50 * 10),
        ("logistic", {"features": CELLS, "side": 14, "bias": False}, 4 * 10),
        ("mlp", {"features": CELLS, "hidden": [16], "activation": "tanh"}, 50 * 16 + 170),
        ("mlp", {"features": "none", "hidden": [16]}, 785 * 16 + 170),
    ],
)
def test_features_are_not_counted_among_the_trained_parameters(name, options, trained):
    assert parameter_count(build(name, options=options)) == trained


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mnist-cn", {}, "Did you mean 'mnist-cnn'"),
        ("", {}, "model = ''"),
        ("mlp", {"options": {"hiden": [4]}}, "no option 'hiden'.*Did you mean 'hidden'"),
        ("logistic", {"options": {"hidden": [4]}}, "it has features, bias"),
        ("logistic", {"options": {"side": 2}}, "it has features, bias"),
        ("logistic", {"options": {"features": CELLS, "sides": 2}}, "Did you mean 'side'"),
        ("mnist-cnn", {"classes": 0}, "classes = 0"),
        ("mnist-cnn", {"seed": -1}, "seed = -1"),
        ("mnist-cnn", {"seed": 2**64}, "seed = "),
        ("mnist-cnn", {"seed": 1.5}, "seed = 1.5"),
        ("mnist-cnn", {"input_shape": (0, 28, 28)}, "input_shape = 0"),
        ("no_such_module_here:net", {}, "there is no module no_such_module_here"),
    ],
)
def test_bad_requests_are_refused(name, changes, message):
    with pytest.raises(InputError, match=message):
        build(name, **changes)


OWN = """
import torch
from torch import nn
from torch import nn
from torch.nn import Flatten, Linear, Sequential
from dpcohort import plugin

def plain(): return Sequential(Flatten(), Linear(784, 10))
def sized(input_shape, classes, width=3):
    wide = torch.Size(input_shape).numel()
    return Sequential(Flatten(), Linear(wide, width), nn.Dropout(), Linear(width, classes))
def anything(**how): return sized(how["input_shape"], how["classes"])
def grouped(): return Sequential(nn.Conv2d(1, 4, 28), nn.GroupNorm(2, 4), Flatten(), Linear(4, 10))
def batch_norm(): return Sequential(Flatten(), Linear(784, 10), nn.BatchNorm1d(10))
def too_few(): return Sequential(Flatten(), Linear(784, 9))
def does_not_fit(): return Sequential(Flatten(), Linear(783, 10))
def not_a_model(): return 7
def failing(): raise RuntimeError("no luck")
def words(): return Sequential(nn.Embedding(50, 4), Flatten(), Linear(12, 10))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    marked = OWN.replace("def ", '@plugin("model")\ndef ')
    (tmp_path / "own_models_of_this_test.py").write_text(marked)
    allow_code("own_models_of_this_test")
    monkeypatch.chdir(tmp_path)
    yield "own_models_of_this_test"
    sys.modules.pop("own_models_of_this_test", None)


@pytest.mark.parametrize("function", ["plain", "sized", "anything", "grouped"])
def test_a_model_of_the_users_is_built_from_the_seed(own, function):
    before = torch.get_rng_state()
    first, second = build(f"{own}:{function}", seed=4), build(f"{own}:{function}", seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def test_token_ids_are_tried_as_token_ids(own):
    model = build(f"{own}:words", input_shape=(3,), input_dtype=torch.int64)
    assert parameter_count(model) == 200 + 130


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("batch_norm", r"layer '2' \(BatchNorm1d\).*GroupNorm\(2, 10\)"),
        ("too_few", r"\(3, 9\) is not allowed: it must be \(records, 10\)"),
        ("does_not_fit", r"cannot be run on records of shape \(1, 28, 28\)"),
        ("not_a_model", "'int' is not allowed: it must be a torch.nn.Module"),
        ("failing", "failed: RuntimeError: no luck"),
        ("words", "cannot be run on records"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(own, function, message):
    with pytest.raises(InputError, match=message):
        build(f"{own}:{function}")
