# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpcohort.errors import InputError
from dpcohort.models import build_model
from dpcohort.models._build import (
    cifar_cnn,
    gabor_filters,
    logistic,
    mlp,
    mnist_cnn,
    mnist_cnn_large,
    start_oriented,
)


@pytest.mark.parametrize(
    ("network", "shape", "parameters"),
    [
        (mnist_cnn, (1, 28, 28), 26_010),
        (mnist_cnn_large, (1, 28, 28), 824_874),
        (cifar_cnn, (3, 32, 32), 550_570),
        (logistic, (1, 28, 28), 7_850),
        (logistic, (5,), 60),
        (mlp, (1, 8, 8), 64 * 128 + 128 + 1290),
    ],
)
def test_the_number_of_parameters(network, shape, parameters):
    model = network(shape, 10)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_logistic_starts_at_zero():
    assert all((p == 0).all() for p in logistic((4,), 3).parameters())


def test_logistic_without_a_bias():
    model = logistic((4,), 3, bias=False)
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 4)]
    assert all((p == 0).all() for p in model.parameters())
    with pytest.raises(InputError, match=r"bias = 0 .*true or false"):
        logistic((4,), 3, bias=0)


def test_no_hidden_layer_is_a_linear_model():
    assert sum(p.numel() for p in mlp((6,), 3, hidden=[]).parameters()) == 21


@pytest.mark.parametrize("network", [mnist_cnn, mnist_cnn_large, cifar_cnn, mlp])
def test_the_activation_can_be_chosen(network):
    for name, kind in (("relu", nn.ReLU), ("tanh", nn.Tanh)):
        model = network((1, 28, 28), 10, activation=name)
        assert any(isinstance(layer, kind) for layer in model)
    with pytest.raises(InputError, match=r"activation = 'rleu'.*Did you mean 'relu'"):
        network((1, 28, 28), 10, activation="rleu")


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        (mnist_cnn, (1, 8, 8), "large enough"),
        (cifar_cnn, (3, 4, 4), "large enough"),
        (mnist_cnn, (784,), r"\(channels, height, width\)"),
    ],
)
def test_records_that_do_not_fit_are_refused(network, shape, message):
    with pytest.raises(InputError, match=f"input_shape = .*{message}"):
        network(shape, 10)


@pytest.mark.parametrize("hidden", [64, "64", [0], [2.5], [-1], None])
def test_bad_widths_are_refused(hidden):
    with pytest.raises(InputError, match="hidden = "):
        mlp((4,), 3, hidden=hidden)


@pytest.mark.parametrize(
    ("network", "options"), [(mlp, {"hidden": [10**12]}), (mlp, {"hidden": [10**5, 10**5]})]
)
def test_a_size_is_looked_at_before_room_is_made_for_it(network, options):
    with pytest.raises(InputError, match="at most"):
        network((1, 28, 28), 10, **options)


def started(start, seed=0):
    return build_model(
        "mnist-cnn", input_shape=(1, 28, 28), classes=10, seed=seed, options={"start": start}
    )


def test_filters_have_mean_zero_norm_1_and_differ():
    filters = gabor_filters(16, 8).flatten(1)
    assert torch.allclose(filters.norm(dim=1), torch.ones(16), atol=1e-6)
    assert float(filters.sum(1).abs().max()) < 1e-5
    alike = (filters @ filters.T - torch.eye(16)).abs()
    assert float(alike.max()) < 0.9


@pytest.mark.parametrize("turn", range(4))
def test_a_filter_answers_most_to_stripes_of_its_own_direction(turn):
    axis = torch.arange(8) - 3.5
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    angle = math.pi * turn / 4
    wave = 2 * math.pi * (math.cos(angle) * x + math.sin(angle) * y) / 6
    answers = torch.hypot(
        (gabor_filters(8, 8)[0::2] * wave.cos()).sum((1, 2)),
        (gabor_filters(8, 8)[1::2] * wave.sin()).sum((1, 2)),
    )
    assert int(answers.argmax()) == turn


def test_the_seed_gives_the_weights_between_and_no_other():
    one, same, other = (started("oriented", seed) for seed in (0, 0, 1))
    assert torch.equal(one[3].weight, same[3].weight)
    assert not torch.equal(one[3].weight, other[3].weight)
    assert torch.equal(one[0].weight, other[0].weight)


def test_a_network_without_convolutions_is_orthogonal_but_for_its_last_layer():
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))
    start_oriented(network)
    first, last = network[0].weight.detach(), network[2].weight.detach()
    assert torch.allclose(first @ first.T, 2 * torch.eye(4), atol=1e-5)
    assert float(last.abs().max()) == 0.0


def test_another_start_is_refused():
    with pytest.raises(InputError, match=r"start = 'gabor'.*random.*oriented"):
        started("gabor")
