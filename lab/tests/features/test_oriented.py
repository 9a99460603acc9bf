# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.data import dataset_from_arrays
from dpcohort.errors import InputError
from dpcohort.models import precompute_features
from dpcohort_lab.features import oriented
from dpcohort_lab.features.fixed import folded, morlet_bank, unit_blocks
from dpcohort_lab.features.oriented import OrientedFeatures, upright, whitening


def blocks_of(features, image):
    """(scales, orientations, cells, cells) of one image of one channel."""
    found, low = features(image[None, None])[0], features.cells**2
    shape = (features.scales, features.orientations, features.cells, features.cells)
    return found[low:].view(shape)


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
    oriented._MOMENTS.clear()
    yield
    oriented._MOMENTS.clear()


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


def test_grey_images_have_no_colour_and_colour_images_need_three_channels():
    features = OrientedFeatures((3, 16, 16), cells=2, colours="opponent")
    grey = pictures(2, 1, 16, 16).expand(2, 3, 16, 16)
    found = features(grey)[:, : 3 * 4].view(2, 3, 4)
    assert float((found[:, 1:] - found[:, 1:].mean(2, keepdim=True)).abs().max()) < 1e-5
    assert float(found[:, 0].abs().max()) > 0.05
    with pytest.raises(InputError, match="colours = 'an image of 1 channels'"):
        OrientedFeatures((1, 16, 16), cells=2, colours="opponent")


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


def written_out(features, images):
    """The definition, one image and one pair of filters at a time, in complex numbers."""
    height, width = features._padded
    banks = morlet_bank(
        height, width, scales=features.scales, orientations=features.orientations
    ).double()

    def moduli(maps, bank, step):
        return torch.fft.ifft2(folded(torch.fft.fft2(maps) * bank, step)).abs()

    def of(image):
        padded = features._pad(image[None]).double()
        blocks, second = [features._average(padded, 0)], []
        for j in range(features.scales):
            first = torch.stack([moduli(padded[0], w, 2**j) for w in banks[j]], 1)[None]
            blocks.append(features._average(first, j))
            for k in range(j + 1, features.scales):
                coarse = folded(banks[k], 2**j) * 4**j
                both = [moduli(first, w, 2 ** (k - j)) for w in coarse]
                second.append(features._average(torch.stack(both, 3), k))
        return unit_blocks([*blocks, *second])

    turned = images.flip(3)
    return torch.cat([of(a) + of(b) for a, b in zip(images, turned, strict=True)])


@pytest.mark.parametrize("shape", [(1, 32, 32), (2, 19, 30)], ids=["even", "uneven"])
def test_the_quick_way_gives_the_numbers_of_the_definition(shape):
    features = OrientedFeatures(shape, scales=3, orientations=4, cells=4, order=2, mirror=True)
    some = pictures(9, *shape)  # more than are computed at a time
    expected = written_out(features.double(), some.double())
    expected = torch.nn.functional.normalize(expected)
    found = OrientedFeatures(shape, scales=3, orientations=4, cells=4, order=2, mirror=True)(some)
    assert float((found - expected).abs().max()) < 1e-5


def test_bits_do_not_depend_on_the_number_of_threads():
    data = dataset_from_arrays(
        "some",
        train_inputs=pictures(40, 1, 16, 16).numpy(),
        train_labels=[0, 1] * 20,
        test_inputs=pictures(2, 1, 16, 16).numpy(),
        test_labels=[0, 1],
    )
    features = OrientedFeatures((1, 16, 16), cells=4, order=2, mirror=True)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(precompute_features(data, features, batch_size=7).train_inputs)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)


def stroke(lean, *, at=0.0, size=29):
    """A bar that leans by so many columns a row, on a black ground."""
    image = torch.zeros(1, 1, size, size)
    middle = (size - 1) / 2
    for row in range(5, size - 5):
        place = round(middle + at + lean * (row - middle))
        image[0, 0, row, place - 1 : place + 2] = 1.0
    return image


def slant(image):
    mass = image[0, 0] - image.amin()
    axis = torch.arange(image.shape[3], dtype=mass.dtype)
    total = mass.sum()
    y, x = axis[:, None], axis[None, :]
    down, across = y - (mass * y).sum() / total, x - (mass * x).sum() / total
    return float((mass * down * across).sum() / (mass * down * down).sum())


@pytest.mark.parametrize("lean", [-0.5, -0.2, 0.3, 0.6])
def test_the_slant_is_gone(lean):
    assert abs(slant(stroke(lean))) > 0.15
    assert abs(slant(upright(stroke(lean)))) < 0.05


def test_brightness_of_the_ground_and_contrast_change_nothing_but_themselves():
    image = stroke(0.4)
    assert torch.allclose(upright(3 * image - 0.4), 3 * upright(image) - 0.4, atol=1e-5)


def test_an_image_without_contrast_stays_as_it_is():
    flat = torch.full((1, 1, 28, 28), 0.7)
    assert torch.allclose(upright(flat), flat)


def mixed(count=4000, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=source) @ torch.tensor(
        [[3.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 0.1]]
    ) + torch.tensor([1.0, -2.0, 4.0])


def test_the_root_is_that_of_the_inverse_with_the_floor():
    images = mixed()
    mean, root = whitening(lambda x: x, images, floor=0.5)
    centred = (images - mean).double()
    covariance = centred.T @ centred / len(centred)
    wanted = torch.linalg.inv(covariance + 0.5 * covariance.diagonal().mean() * torch.eye(3))
    assert torch.allclose((root @ root.T).double(), wanted, rtol=1e-3, atol=1e-5)
