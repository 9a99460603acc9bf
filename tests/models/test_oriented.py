# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch

from dpcohort.errors import InputError
from dpcohort.models import oriented
from dpcohort.models.oriented import OrientedFeatures
from dpcohort.models.synthetic import synthetic_images


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


def pictures(count, *shape, seed=0):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def few_images(monkeypatch):
    monkeypatch.setattr(oriented, "_SYNTHETIC_IMAGES", 500)
    oriented._moments.cache_clear()
    yield
    oriented._moments.cache_clear()


ALL = [
    {"order": 2, "power": 0.5},
    {"contrast": 0.5},
    {"centring": "cell", "order": 2, "contrast": 0.1},
    {"mirror": True},
    {"upright": True},
]


@pytest.mark.parametrize("options", ALL, ids=lambda options: "-".join(options))
@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 16, 19)], ids=["28", "two-channels"])
def test_every_setting_keeps_the_width_norm_1_and_the_records_apart(options, shape):
    features = OrientedFeatures(shape, cells=4, orientations=4, **options)
    some = pictures(4, *shape)
    found = features(some)
    assert found.shape == (4, features.width)
    assert torch.allclose(found.norm(dim=1), torch.ones(4), atol=1e-5)
    assert torch.allclose(found[2:3], features(some[2:3]), atol=1e-5)
    assert not list(features.parameters())


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("options", [*ALL, {"whitening": "leaves"}], ids=lambda o: "-".join(o))
def test_an_image_without_contrast_is_finite_with_every_setting(options):
    features = OrientedFeatures((1, 12, 12), cells=3, orientations=4, **options)
    found = features(torch.full((1, 1, 12, 12), -0.4242))
    assert bool(torch.isfinite(found).all())
    assert float(found.norm()) <= 1.0 + 1e-5


def test_a_mirror_image_has_the_same_features_where_it_is_asked_for():
    some = pictures(3, 1, 28, 28)
    plain, mirrored = (OrientedFeatures((1, 28, 28), mirror=m) for m in (False, True))
    assert torch.allclose(mirrored(some), mirrored(some.flip(3)), atol=1e-5)
    assert not torch.allclose(plain(some), plain(some.flip(3)), atol=1e-2)


def test_contrast_makes_a_faint_corner_count():
    image = torch.zeros(28, 28)
    image[4:8, ::2], image[20:24, ::2] = 1.0, 0.05
    plain, evened = (
        blocks_of(OrientedFeatures((1, 28, 28), contrast=c), image)[0] for c in (0.0, 0.1)
    )
    faint = [float((found[:, 5] - found.mean()).abs().max()) for found in (plain, evened)]
    strong = [float((found[:, 1] - found.mean()).abs().max()) for found in (plain, evened)]
    assert faint[1] / strong[1] > 2 * faint[0] / strong[0]


def test_grey_images_have_no_colour_and_colour_images_need_three_channels():
    features = OrientedFeatures((3, 16, 16), cells=2, colours="opponent")
    grey = pictures(2, 1, 16, 16).expand(2, 3, 16, 16)
    found = features(grey)[:, : 3 * 4].view(2, 3, 4)
    assert float((found[:, 1:] - found[:, 1:].mean(2, keepdim=True)).abs().max()) < 1e-5
    assert float(found[:, 0].abs().max()) > 0.05
    with pytest.raises(InputError, match="colours = 'an image of 1 channels'"):
        OrientedFeatures((1, 16, 16), cells=2, colours="opponent")


@pytest.mark.usefixtures("few_images")
def test_whitening_makes_the_features_of_such_images_alike_in_all_directions():
    settings = {"cells": 2, "orientations": 2, "scales": 1}
    images = synthetic_images("leaves", 500, (1, 12, 12), seed=9)
    spread = []
    for more in ({}, {"whitening": "leaves", "whitening_floor": 0.01}):
        features = OrientedFeatures((1, 12, 12), **settings, **more)
        values = torch.linalg.eigvalsh(torch.cov(features(images).T))
        # Two blocks are centred: two directions are empty in any case.
        spread.append(float(values[-1] / values[2]))
    assert spread[1] < spread[0] / 2


@pytest.mark.usefixtures("few_images")
def test_a_whitening_is_made_once_for_the_same_settings():
    settings = {"cells": 2, "orientations": 2, "whitening": "leaves"}
    one, again = (OrientedFeatures((1, 12, 12), **settings) for _ in range(2))
    other = OrientedFeatures((1, 12, 12), **settings, whitening_floor=1.0)
    assert one._root is again._root
    assert one._root is not other._root
    assert "whitening='leaves', whitening_floor=3.0" in repr(one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 3}, "order = 3"),
        ({"power": 1.5}, "power = 1.5"),
        ({"contrast": -1.0}, "contrast = -1"),
        ({"colours": "lab"}, "colours = 'lab'"),
        ({"mirror": 1}, "mirror = 1.*true or false"),
        ({"upright": "yes"}, "upright = 'yes'.*true or false"),
        ({"whitening": "mnist"}, "whitening = 'mnist'"),
        ({"whitening_floor": 0.0}, "whitening_floor = 0"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        OrientedFeatures((1, 28, 28), **options)
