# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch

from dpcohort.models.oriented import OrientedFeatures


def blocks_of(features, image):
    """(scales, orientations, cells, cells) of one image of one channel."""
    found, low = features(image[None, None])[0], features.cells**2
    shape = (features.scales, features.orientations, features.cells, features.cells)
    return found[low:].view(shape)


@pytest.mark.parametrize("turn", [0, 2, 4, 6])
def test_stripes_are_found_by_the_filter_of_their_direction(turn):
    angle = math.pi * turn / 8
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    stripes = torch.cos(0.375 * math.pi * (math.cos(angle) * x + math.sin(angle) * y))
    found = blocks_of(OrientedFeatures((1, 32, 32), scales=2, cells=4), stripes)
    middle = found[1, :, 1:3, 1:3].mean((1, 2))
    assert int(middle.argmax()) == turn


def test_features_stand_where_the_edge_is():
    image = torch.zeros(28, 28)
    image[2:6, 20:24] = 1.0
    found = blocks_of(OrientedFeatures((1, 28, 28), cells=7), image)
    strongest = int(found[0].sum(0).argmax())
    assert divmod(strongest, 7) in {(0, 5), (1, 5)}


def test_the_first_block_is_the_image_averaged_over_cells():
    image = torch.rand(28, 28, generator=torch.Generator().manual_seed(1))
    found = OrientedFeatures((1, 28, 28), cells=7)(image[None, None])[0, :49]
    pooled = torch.nn.functional.avg_pool2d(image[None, None], 4).flatten()
    centred = pooled - pooled.mean()
    assert torch.allclose(found, centred / centred.norm() / math.sqrt(3), atol=1e-5)


def test_centring_by_cell_leaves_the_direction_and_not_the_amount():
    image = torch.rand(28, 28, generator=torch.Generator().manual_seed(2))
    found = blocks_of(OrientedFeatures((1, 28, 28), centring="cell"), image)
    assert float(found.mean(1).abs().max()) < 1e-6
    assert float(found.flatten(1).norm(dim=1).min()) > 0.5
    assert float(blocks_of(OrientedFeatures((1, 28, 28)), image).mean(1).abs().max()) > 1e-3
