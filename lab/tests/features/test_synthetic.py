# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.errors import InputError
from dpcohort_lab.features.synthetic import SYNTHETIC_NAMES, synthetic_images

KINDS = pytest.mark.parametrize("name", SYNTHETIC_NAMES)


@KINDS
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 24)])
def test_images_of_the_asked_shape_with_contrast(name, shape):
    images = synthetic_images(name, 40, shape)
    assert images.shape == (40, *shape)
    assert 0.0 <= float(images.min()) < float(images.max()) <= 1.0
    assert float((images.flatten(1).std(1) > 0.02).float().mean()) > 0.9


@KINDS
def test_the_seed_gives_them_and_the_global_state_has_no_part(name):
    before = torch.random.get_rng_state()
    one = synthetic_images(name, 3, (1, 16, 16), seed=4)
    torch.manual_seed(1)
    again = synthetic_images(name, 3, (1, 16, 16), seed=4)
    torch.random.set_rng_state(before)
    assert torch.equal(one, again)
    assert not torch.equal(one, synthetic_images(name, 3, (1, 16, 16), seed=5))


def test_near_places_of_leaves_are_more_alike_than_far_ones():
    images = synthetic_images("leaves", 150, (1, 32, 32))[:, 0] - 0.5
    near = (images[:, :, :-1] * images[:, :, 1:]).mean()
    far = (images[:, :, :-12] * images[:, :, 12:]).mean()
    assert float(near) > 1.5 * float(far) > 0


def test_another_kind_is_refused():
    with pytest.raises(InputError, match=r"whitening = 'fractals'"):
        synthetic_images("fractals", 1, (1, 8, 8))
