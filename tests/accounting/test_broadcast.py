# SPDX-License-Identifier: Apache-2.0
"""Broadcasting, memory of equal clients, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import certify
from dpcohort.accounting.contract import broadcast_fields, whole_steps
from dpcohort.errors import InputError


def test_equal_clients_are_asked_once(monkeypatch):
    asked = []

    def answer(events, delta):
        asked.append(events[0].noise_multiplier)
        return asked[-1]

    monkeypatch.setattr(certify, "composed_epsilon", answer)
    many = certify.certify_epsilon(
        noise_multiplier=[1.0, 2.0, 1.0, 1.0], delta=0.1, sampling_rate=0.5, steps=3, method="pld"
    )
    assert asked == [1.0, 2.0]
    assert many.tolist() == [1.0, 2.0, 1.0, 1.0]


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
    good = {"noise_multiplier": 1.0, "sampling_rate": 0.5, "steps": 1, "delta": 0.1}
    with pytest.raises(InputError):
        certify.certify_epsilon(**{**good, **change})


def test_fields_that_do_not_broadcast_are_named():
    with pytest.raises(InputError, match="epsilon, delta"):
        broadcast_fields(epsilon=np.ones(2), delta=np.ones(3))


def test_the_fraction_is_shown():
    with pytest.raises(InputError, match=r"2\.5"):
        whole_steps([1, 2.5])
