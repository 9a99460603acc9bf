# SPDX-License-Identifier: Apache-2.0
"""Broadcasting, memory of equal clients, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting.broadcast import answer_each, broadcast_fields, whole_steps
from dpcohort.errors import InputError


def test_scalars_give_a_float_and_arrays_an_array_of_the_common_shape():
    def answer(asked, z, r, n):
        return asked + z + r + n

    one = answer_each(
        answer, noise_multiplier=1.0, sampling_rate=0.5, steps=2, delta=np.array(0.25)
    )
    assert isinstance(one, float)
    assert one == 3.75
    many = answer_each(
        answer,
        noise_multiplier=[[1.0], [2.0]],
        sampling_rate=[0.5, 0.25, 1.0],
        steps=2,
        delta=np.array(0.25),
    )
    assert many.shape == (2, 3)
    assert many[1, 1] == 4.5


def test_equal_clients_are_asked_once():
    calls = []

    def answer(asked, z, r, n):
        calls.append(z)
        return z

    result = answer_each(
        answer,
        noise_multiplier=[1.0, 2.0, 1.0, 1.0],
        sampling_rate=0.5,
        steps=3,
        epsilon=np.array(1.0),
    )
    assert calls == [1.0, 2.0]
    assert result.tolist() == [1.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 1.5},
        {"steps": -1},
        {"steps": "ten"},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.01},
        {"noise_multiplier": -0.1},
        {"noise_multiplier": np.nan},
        {"noise_multiplier": [1.0, 2.0], "steps": [1, 2, 3]},
    ],
)
def test_bad_input_is_refused(change):
    good = {"noise_multiplier": 1.0, "sampling_rate": 0.5, "steps": 1}
    with pytest.raises(InputError):
        answer_each(lambda *_: 0.0, **{**good, **change}, delta=np.array(0.1))


def test_fields_that_do_not_broadcast_are_named():
    with pytest.raises(InputError, match="epsilon, delta"):
        broadcast_fields(epsilon=np.ones(2), delta=np.ones(3))


def test_the_fraction_is_shown():
    with pytest.raises(InputError, match=r"2\.5"):
        whole_steps([1, 2.5])
