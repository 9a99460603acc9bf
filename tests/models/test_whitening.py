# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.errors import InputError
from dpcohort.models.whitening import whitening


def mixed(count=4000, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=source) @ torch.tensor(
        [[3.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 0.1]]
    ) + torch.tensor([1.0, -2.0, 4.0])


def test_without_a_floor_the_features_are_white():
    images = mixed()
    mean, root = whitening(lambda x: x, images, floor=1e-9)
    white = (images - mean) @ root
    assert torch.allclose(white.mean(0), torch.zeros(3), atol=1e-3)
    assert torch.allclose(white.T @ white / len(white), torch.eye(3), atol=1e-3)


def test_the_root_is_that_of_the_inverse_with_the_floor():
    images = mixed()
    mean, root = whitening(lambda x: x, images, floor=0.5)
    centred = (images - mean).double()
    covariance = centred.T @ centred / len(centred)
    wanted = torch.linalg.inv(covariance + 0.5 * covariance.diagonal().mean() * torch.eye(3))
    assert torch.allclose((root @ root.T).double(), wanted, rtol=1e-3, atol=1e-5)


def test_much_floor_only_scales():
    _, root = whitening(lambda x: x, mixed(), floor=1e6)
    assert torch.allclose(root / root[0, 0], torch.eye(3), atol=1e-3)


def test_the_features_are_computed_in_parts_with_the_same_result():
    images, seen = mixed(600), []

    def features(part):
        seen.append(len(part))
        return part

    mean, _ = whitening(features, images, floor=1.0)
    assert max(seen) < 600
    assert torch.allclose(mean, images.mean(0), atol=1e-5)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_images_are_refused(count):
    with pytest.raises(InputError, match=f"images = {count}.*at least two"):
        whitening(lambda x: x, torch.ones(count, 3), floor=1.0)
