# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.models.upright import upright


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


def test_the_drawing_is_in_the_middle():
    columns = upright(stroke(0.0, at=6.0))[0, 0].sum(0)
    assert abs(float((columns * torch.arange(29.0)).sum() / columns.sum()) - 14.0) < 0.2


def test_brightness_of_the_ground_and_contrast_change_nothing_but_themselves():
    image = stroke(0.4)
    assert torch.allclose(upright(3 * image - 0.4), 3 * upright(image) - 0.4, atol=1e-5)


def test_each_image_is_treated_alone():
    some = torch.cat([stroke(0.4), stroke(-0.2, at=3.0)])
    assert torch.allclose(upright(some)[1:], upright(some[1:]), atol=1e-6)


def test_an_image_without_contrast_stays_as_it_is():
    flat = torch.full((1, 1, 28, 28), 0.7)
    assert torch.allclose(upright(flat), flat)


def test_channels_move_together():
    image = stroke(0.5).expand(1, 3, 29, 29)
    moved = upright(image)
    assert torch.allclose(moved[:, 0], moved[:, 2])
    assert abs(slant(moved[:, :1])) < 0.05
