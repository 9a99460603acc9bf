# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpcohort.errors import InputError
from dpcohort.models import build_model, parameter_count
from dpcohort.models.starts import gabor_filters, start_oriented


def mnist_cnn(start, seed=0):
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


def test_the_same_network_with_other_weights_all_of_them_trained():
    plain, oriented = mnist_cnn("random"), mnist_cnn("oriented")
    assert parameter_count(plain) == parameter_count(oriented) == 26_010
    shapes = [tuple(p.shape) for p in plain.parameters()]
    assert [tuple(p.shape) for p in oriented.parameters()] == shapes
    assert all(p.requires_grad for p in oriented.parameters())


def test_no_class_is_preferred_at_the_start():
    with torch.no_grad():
        out = mnist_cnn("oriented")(torch.rand(3, 1, 28, 28))
    assert torch.equal(out, torch.zeros(3, 10))


def test_the_seed_gives_the_weights_between_and_no_other():
    one, same, other = (mnist_cnn("oriented", seed) for seed in (0, 0, 1))
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
        mnist_cnn("gabor")
