# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.models.scattering import ScatteringFeatures


def centred_images(count, size=32, inside=12, seed=0):
    """Noise in the middle, zero around it, so that the border has no part in anything."""
    start = (size - inside) // 2
    noise = torch.randn(count, 1, inside, inside, generator=torch.Generator().manual_seed(seed))
    edge = size - inside - start
    return torch.nn.functional.pad(noise, (start, edge, start, edge)).double()


def flat(blocks):
    return torch.cat([block.flatten(1) for block in blocks], 1)


@pytest.mark.parametrize(("scales", "per_cell"), [(1, 9), (2, 81), (3, 217)])
def test_the_number_of_coefficients(scales, per_cell):
    features = ScatteringFeatures((1, 32, 32), scales=scales)
    assert features.cells == 32 // 2**scales
    assert features.width == per_cell * features.cells**2
    blocks = features.coefficients(torch.zeros(2, 1, 32, 32))
    assert len(blocks) == 1 + scales + scales * (scales - 1) // 2
    assert flat(blocks).shape == (2, features.width)


@pytest.mark.parametrize("scales", [2, 3])
def test_no_two_images_are_further_apart_than_their_pixels(scales):
    """The transform is nonexpansive (Bruna and Mallat, section 2.5), here on the coarse grid."""
    features = ScatteringFeatures((1, 32, 32), scales=scales).double()
    some, others = centred_images(6), centred_images(6, seed=1)
    apart = (flat(features.coefficients(some)) - flat(features.coefficients(others))).norm(dim=1)
    assert (apart * 2**scales <= 1.05 * (some - others).flatten(1).norm(dim=1)).all()
    assert (apart > 0).all()


def test_second_order_carries_energy_that_first_order_has_lost():
    features = ScatteringFeatures((1, 32, 32), scales=3).double()
    energy = [float(b.square().sum()) for b in features.coefficients(centred_images(6))]
    assert all(value > 0 for value in energy)
    assert sum(energy[4:]) < sum(energy[1:4])


@pytest.mark.parametrize("scales", [2, 3])
def test_a_shift_of_a_pixel_changes_less_than_it_changes_the_pixels(scales):
    features = ScatteringFeatures((1, 32, 32), scales=scales).double()
    images = centred_images(4)
    shifted = images.roll(1, 3)
    before, after = (flat(features.coefficients(x)) for x in (images, shifted))
    relative = (after - before).norm(dim=1) / before.norm(dim=1)
    in_pixels = (shifted - images).flatten(1).norm(dim=1) / images.flatten(1).norm(dim=1)
    assert (relative < in_pixels / 4).all()


def test_a_shift_of_a_cell_moves_the_coefficients_by_a_cell():
    features = ScatteringFeatures((1, 32, 32), scales=2).double()
    images = centred_images(3, inside=8)
    before, after = (features.coefficients(x) for x in (images, images.roll(4, 3)))
    for one, other in zip(before, after, strict=True):
        moved = one.roll(1, -1)
        # Far from the border, where nothing comes in from outside.
        assert torch.allclose(moved[..., 2:-2], other[..., 2:-2], atol=2e-3 * float(one.max()))


def test_coefficients_are_the_printed_ones():
    """All of the second order, without subsampling in between, against the definition."""
    features = ScatteringFeatures((1, 32, 32), scales=3, orientations=2, cells=4).double()
    image = centred_images(1)
    padded = features._pad(image)
    found = features.coefficients(image)
    place = 4
    for j in range(3):
        for k in range(j + 1, 3):
            for first in range(2):
                for second in range(2):
                    wave = torch.fft.ifft2(torch.fft.fft2(padded) * features.bank[j, first]).abs()
                    twice = torch.fft.ifft2(torch.fft.fft2(wave) * features.bank[k, second]).abs()
                    wanted = features._average(twice, 0)[0, 0]
                    got = found[place][0, 0, first, second]
                    assert float((got - wanted).norm() / wanted.norm()) < 0.05
            place += 1
