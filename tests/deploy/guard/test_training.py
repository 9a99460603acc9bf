# SPDX-License-Identifier: Apache-2.0
"""The client's step: the engine's, on the lattice, with every record's part its own."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from dpcohort import plugin
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.deploy.guard import ModelTerms
from dpcohort.deploy.guard import _training as module
from dpcohort.deploy.guard._files import GuardedData
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.engine import Lattice
from dpcohort.engine._reference import cross_entropy
from dpcohort.engine.clipping import ClippedNetwork, clip_factors, per_example_gradients
from dpcohort.errors import InputError
from dpcohort.models import build_model

MODEL = ModelTerms(name="mlp", input_shape=(5,), classes=3, options={"hidden": [4]})


@pytest.fixture
def data():
    dice = np.random.default_rng(3)
    return GuardedData(dice.normal(size=(30, 5)).astype(np.float32), dice.integers(0, 3, 30), "")


def without_noise(seen):
    """A release without noise that remembers what it was given."""

    def release(self, total, key, *, scale):
        seen.append(total.numpy())
        return total.double() * (scale * self.unit)

    return release


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(Lattice, "release", without_noise([]))


def reference(data, weights, clip, batch, step_sizes):
    """Algorithm 1 without noise, by the engine's own parts."""
    built = build_model("mlp", input_shape=(5,), classes=3, seed=0, options={"hidden": [4]})
    gradients = per_example_gradients(built, cross_entropy)
    start = torch.from_numpy(weights)
    point = start.clone()
    for alpha in step_sizes:
        raw = gradients(point, torch.from_numpy(data.inputs), torch.from_numpy(data.labels))
        point = point - alpha * (clip_factors(raw.square().sum(1), clip) @ raw) / batch
    return (start - point).numpy()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_without_noise_it_is_the_engines_step(data, no_noise, steps, clip):
    training = LocalTraining(MODEL, data)
    weights = np.random.default_rng(4).normal(size=training.dimension).astype(np.float32)
    sizes = [0.5, 0.2, 0.1][:steps]
    found = training.update(weights, Lattice(1.0, clip), (SAMPLERS["poisson"], 1.0, 30), sizes)
    expected = reference(data, weights, clip, 30, sizes)
    assert np.abs(found - expected).max() < 3e-5 * np.abs(expected).max()


def test_each_step_has_noise_of_z_c_over_b(keystream):
    wide = ModelTerms(name="logistic", input_shape=(3000,), classes=3)
    null = GuardedData(np.zeros((2, 3000), np.float32), np.array([0, 1]), "")  # gradients near 0
    training = LocalTraining(wide, null, keystream("noise"))
    weights = np.zeros(training.dimension, np.float32)
    sampling = (SAMPLERS["poisson"], 0.5, 1)
    spreads = [
        training.update(weights, Lattice(3.0, 0.7), sampling, [0.1] * steps)[:9000].std()
        for steps in (1, 1, 4)
    ]
    one = 0.1 * 3.0 * 0.7
    assert spreads == pytest.approx([one, one, 2 * one], rel=0.03)  # four steps: twice the spread


def test_no_two_draws_share_noise():
    null = GuardedData(np.zeros((1, 4000), np.float32), np.array([0]), "")
    training = LocalTraining(ModelTerms(name="logistic", input_shape=(4000,), classes=2), null)
    weights = np.zeros(training.dimension, np.float32)
    draw = ((SAMPLERS["poisson"], 1.0, 1), [0.1])
    a, b = (training.update(weights, Lattice(1.0, 1.0), *draw) for _ in range(2))
    assert abs(np.corrcoef(a[:8000], b[:8000])[0, 1]) < 5.5 / np.sqrt(8000)


def test_one_record_moves_the_sum_by_at_most_the_clip_exactly(data, monkeypatch):
    """The same batch with and without a record: the integers differ by that record's own."""
    seen = []
    monkeypatch.setattr(Lattice, "release", without_noise(seen))
    training = LocalTraining(MODEL, data)
    weights = np.random.default_rng(5).normal(size=training.dimension).astype(np.float32)
    lattice = Lattice(0.9, 0.3)
    for batch in (
        np.arange(30),
        np.delete(np.arange(30), 7),
        np.array([7]),
        np.array([], np.int64),
    ):
        monkeypatch.setattr(
            module, "draw_batches", lambda *_, batch=batch, **__: lambda step: batch
        )
        training.update(weights, lattice, (SAMPLERS["poisson"], 1.0, 30), [0.1])
    whole, without, alone, nobody = seen
    assert np.array_equal(whole - without, alone)  # not one last bit depends on the neighbours
    assert 0.99 < np.linalg.norm(alone.astype(float)) / lattice.bound <= 1
    assert not nobody.any()


def test_every_output_is_a_lattice_value(data, keystream, monkeypatch):
    monkeypatch.setattr("dpcohort.engine._lattice._BITS", 12)  # integers that float32 holds
    training = LocalTraining(MODEL, data, keystream("l"))
    lattice = Lattice(1.0, 1.0)
    weights = np.zeros(training.dimension, np.float32)
    for _ in range(50):
        found = training.update(weights, lattice, (SAMPLERS["poisson"], 0.5, 15), [0.125])
        unit = 0.125 * (lattice.unit / 15)
        integers = np.rint(found.astype(np.float64) / unit)
        assert np.array_equal((integers * unit).astype(np.float32), found)


class Forgetful(torch.nn.Module):
    """A linear layer with something that is not a function of record and weights."""

    def __init__(self, kind, classes):
        super().__init__()
        self.layer, self.kind, self.runs = torch.nn.Linear(5, classes), kind, 0
        self.dropout = torch.nn.Dropout(0.5 if kind == "dropout" else 0.0)

    def forward(self, x):
        self.runs += torch.is_grad_enabled()  # a model that behaves while it is only looked at
        if self.kind == "own dice":
            x = torch.nn.functional.dropout(x, 0.5)
        elif self.kind == "memory":
            x = x * (1 + 1e-3 * self.runs)
        elif self.kind == "broken" and self.runs:
            raise ZeroDivisionError
        return self.layer(self.dropout(x))


@plugin("model")
def forgetful(kind, classes):
    return Forgetful(kind, classes)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dropout", "belong to no stream"),
        ("own dice", "not the same every time"),
        ("memory", "not the same every time"),
        ("broken", "ZeroDivisionError"),
    ],
)
def test_a_model_in_which_a_record_changes_what_others_give_is_refused(data, kind, said):
    """With dice of its own, taking one record away would change the masks of all that follow."""
    model = ModelTerms(
        name=f"{__name__}:forgetful", input_shape=(5,), classes=3, options={"kind": kind}
    )
    with pytest.raises(InputError, match=said):
        LocalTraining(model, data)


class Own(torch.nn.Sequential):
    """The layers of MODEL in a class of a user's own: what it does with a batch, nobody knows."""


@plugin("model")
def own(classes):
    return Own(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, classes))


@plugin("model")
def reading(classes):
    layers = torch.nn.Embedding(6, 5), torch.nn.Flatten(), torch.nn.Linear(35, classes)
    return torch.nn.Sequential(*layers)


@plugin("model")
def hooked(classes):
    layer = torch.nn.Linear(5, classes)
    layer.register_forward_hook(lambda *_: None)
    return torch.nn.Sequential(layer)


class Raises(torch.nn.Module):
    """A linear layer that some records break."""

    def __init__(self, classes):
        super().__init__()
        self.layer = torch.nn.Linear(5, classes)

    def forward(self, x):
        if float(x.max()) > 50:
            raise IndexError("index out of range in self: 4711")
        return self.layer(x)


@plugin("model")
def raising(classes):
    return Raises(classes)


RAISING = ModelTerms(name=f"{__name__}:raising", input_shape=(5,), classes=3)
READING = ModelTerms(name=f"{__name__}:reading", input_shape=(7,), classes=3)


def sum_of(training, monkeypatch, batch, weights):
    """The integers of these records, without noise."""
    seen = []
    monkeypatch.setattr(Lattice, "release", without_noise(seen))
    monkeypatch.setattr(module, "draw_batches", lambda *_, **__: lambda step: np.asarray(batch))
    training.update(weights, Lattice(1.0, 1.0), (SAMPLERS["poisson"], 1.0, 30), [0.1])
    return seen[0]


@pytest.mark.parametrize("model", [MODEL, RAISING])
def test_a_record_without_a_gradient_contributes_nothing_and_is_not_told(data, monkeypatch, model):
    """A draw that fails for one record would say that it was in the batch."""
    data.inputs[7] = 100.0
    training = LocalTraining(model, data)
    weights = np.random.default_rng(6).normal(size=training.dimension).astype(np.float32)
    real = ClippedNetwork.own_gradients

    def all_but_one(self, point, inputs, labels):
        if (inputs == 100.0).any():
            raise IndexError("index out of range in self: 4711")
        return real(self, point, inputs, labels)

    monkeypatch.setattr(ClippedNetwork, "own_gradients", all_but_one)
    with_it = sum_of(training, monkeypatch, np.arange(30), weights)
    without = sum_of(training, monkeypatch, np.delete(np.arange(30), 7), weights)
    assert np.array_equal(with_it, without)
    assert with_it.any()
    assert not sum_of(training, monkeypatch, [7], weights).any()


@pytest.mark.parametrize("token", [6, -1, 2**40])
def test_a_token_that_the_model_does_not_know_costs_only_its_own_record(monkeypatch, token):
    dice = np.random.default_rng(0)
    inputs = dice.integers(0, 6, (40, 7))
    inputs[11, 3] = token
    training = LocalTraining(READING, GuardedData(inputs, dice.integers(0, 3, 40), ""))
    assert "side by side" in training.how
    weights = dice.normal(size=training.dimension).astype(np.float32)
    everyone = sum_of(training, monkeypatch, np.arange(40), weights)
    rest = sum_of(training, monkeypatch, np.delete(np.arange(40), 11), weights)
    assert np.array_equal(everyone, rest)
    assert not sum_of(training, monkeypatch, [11], weights).any()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e12, 3e37])
def test_weights_that_blow_up_last_bits_show_nothing_of_the_neighbours(
    monkeypatch, activation, scale
):
    """A server's weights may send gradients to infinity, to NaN, or to where last bits decide."""
    options = {"hidden": [7, 5], "activation": activation}
    model = ModelTerms(name="mlp", input_shape=(13,), classes=3, options=options)
    dice = np.random.default_rng(1)
    inputs = dice.normal(size=(150, 13)).astype(np.float32)
    inputs[::5] *= 10.0 ** dice.uniform(-40, 38, (30, 1))
    labels = dice.integers(0, 3, 150)
    training = LocalTraining(model, GuardedData(inputs, labels, ""))
    assert "side by side" in training.how
    weights = (scale * dice.normal(size=training.dimension)).clip(-3e38, 3e38).astype(np.float32)
    alone = [sum_of(training, monkeypatch, [row], weights) for row in range(150)]
    lengths = np.linalg.norm(np.array(alone, float), axis=1)
    assert lengths.max() <= Lattice(1.0, 1.0).bound
    for count in (2, 31, 33, 64, 97, 150):
        batch = dice.permutation(150)[:count]
        together = sum_of(training, monkeypatch, batch, weights)
        assert np.array_equal(together, sum(alone[row] for row in batch))


def test_a_record_may_hold_anything_and_spoils_no_other(data, monkeypatch):
    weights = np.random.default_rng(2).normal(size=39).astype(np.float32)
    rest = None
    for value in (0.0, 1.0, np.nan, np.inf, -3e38, 1e-42):
        inputs = data.inputs.copy()
        inputs[7] = value
        training = LocalTraining(MODEL, GuardedData(inputs, data.labels, ""))
        whole = sum_of(training, monkeypatch, np.arange(30), weights)
        own = sum_of(training, monkeypatch, [7], weights)
        assert rest is None or np.array_equal(whole - own, rest)
        assert np.isfinite(value) or not own.any()
        rest = whole - own


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [
        ("mlp", {}, "side by side: every layer"),
        (f"{__name__}:own", {}, "side by side: every layer"),
        (
            f"{__name__}:raising",
            {},
            "each alone, about .* seconds per 1,000: .* a process of its own",
        ),
        (f"{__name__}:hooked", {}, "each alone, .* a fixed list of operations"),
        ("mlp", {"loss": f"{__name__}:a_loss"}, "each alone, .* your own"),
    ],
)
def test_the_guard_says_how_records_are_computed(data, name, task, said):
    model = ModelTerms(name=name, input_shape=(5,), classes=3, task=task)
    assert re.search(said, LocalTraining(model, data).how)


@plugin("loss")
def a_loss(outputs, targets):
    return cross_entropy(outputs, targets)


def test_a_machine_that_treats_places_differently_computes_one_by_one(data, monkeypatch):
    """What multiplies matrices is not ours: it is tried before it is trusted."""
    real = ClippedNetwork.own_gradients

    def by_place(self, weights, inputs, targets):
        parts, placed = real(self, weights, inputs, targets)
        parts[-1][0][-1] *= 1 + 2**-23
        return parts, placed

    def by_neighbours(self, weights, inputs, targets):
        parts, placed = real(self, weights, inputs, targets)
        (last,) = parts[-1]
        return [*parts[:-1], (last + 0 * last.sum(0),)], placed

    for wrong in (by_place, by_neighbours):
        monkeypatch.setattr(ClippedNetwork, "own_gradients", wrong)
        training = LocalTraining(MODEL, data)
        assert "last bits depend on the others" in training.how


def test_a_diverged_model_gives_a_finite_update(data):
    training = LocalTraining(MODEL, data)
    weights = np.full(training.dimension, 3e38, np.float32)
    found = training.update(weights, Lattice(1.0, 1e12), (SAMPLERS["poisson"], 1.0, 1), [1e6, 1e6])
    assert np.isfinite(found).all()
