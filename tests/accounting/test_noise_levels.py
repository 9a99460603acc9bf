# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import deployed_noise as module
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.deployed_noise import noise_levels
from dpcohort.accounting.paper import noise_level
from dpcohort.accounting.tight import calibrate_noise


def _levels(accountant="tight", public=(False, False, True), local_steps=2, **changes):
    settings = {
        "epsilon": np.array([0.5, 4.0, np.nan]),
        "delta": np.array([1e-5, 1e-6, np.nan]),
        "public": np.array(public),
        "sizes": np.array([600, 500, 400]),
        "batch_sizes": np.array([60, 100, 40]),
        "expected_draws": np.array([8.0, 6.0, 5.0]),
        "local_steps": local_steps,
        "contract": Contract.of(accountant),
    } | changes
    return noise_levels(**settings)


def test_paper_levels_are_its_formula_and_public_clients_are_silent():
    levels = _levels("paper")
    expected = noise_level(epsilon=4.0, delta=1e-6, sampling_rate=0.2, size=500)
    assert levels.level[1] == expected
    assert (levels.floor == 0).all()
    assert levels.level[2] == 0


def test_the_line_goes_through_both_calibrations():
    levels = _levels()
    for k, (epsilon, delta, rate, batch, draws) in enumerate(
        [(0.5, 1e-5, 0.1, 60, 16), (4.0, 1e-6, 0.2, 100, 12)]
    ):
        for steps in (2, 2 * draws):
            z = calibrate_noise(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps)
            line = levels.floor[k] + levels.level[k] * steps
            assert line == pytest.approx((z / batch) ** 2, rel=1e-9)
    assert levels.level[2] == levels.floor[2] == 0


def test_replace_one_needs_up_to_four_times_the_variance():
    near = _levels()
    far = _levels(contract=Contract.of("tight", sampler="fixed"))
    ratio = (far.floor + 8 * far.level)[:2] / (near.floor + 8 * near.level)[:2]
    assert (ratio > 3.5).all()
    assert (ratio < 5).all()


def test_many_clients_take_the_limit_of_many_steps(monkeypatch):
    calibrated = _levels(expected_draws=np.full(3, 500.0))
    monkeypatch.setattr(module, "CALIBRATION_LIMIT", 1)
    limit = _levels(expected_draws=np.full(3, 500.0))
    assert limit.level[:2] == pytest.approx(calibrated.level[:2], rel=0.03)
    assert limit.floor[2] == 0
    assert np.array_equal(limit.level, _levels(calibrated=False).level)
