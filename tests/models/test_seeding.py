# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.models.seeding import seeded


def test_the_global_state_is_given_back_even_after_an_error():
    before = torch.get_rng_state()
    with seeded(3):
        torch.rand(100)
    with pytest.raises(ZeroDivisionError), seeded(3):
        torch.rand(1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_drawn_depends_on_the_seed_alone():
    drawn = []
    for outer in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(outer)
            with seeded(5):
                drawn.append(torch.rand(4))
    assert torch.equal(*drawn)
    with seeded(6):
        assert not torch.equal(torch.rand(4), drawn[0])


def test_tensors_are_made_on_the_cpu_whatever_the_default():
    with torch.device("meta"), seeded(1):
        assert torch.rand(1).device.type == "cpu"
