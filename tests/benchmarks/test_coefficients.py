# SPDX-License-Identifier: Apache-2.0
"""Coefficients and their intervals on tables whose law is known; the benchmark draws hundreds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "coefficients.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("coefficients", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("kind", "newton"),
    [("classes", False), ("numbers", False), ("counts", False), ("classes", True)],
)
def test_errors_are_as_large_as_said_in_trainings_that_stop_early(script, kind, newton):
    z, noise = script.errors(
        script.KINDS[kind], repeats=16, rounds=12, epsilon=8.0 if newton else 1.5, newton=newton
    )
    assert 0.2 < noise.mean() < 0.97  # both kinds of error matter
    assert 0.55 < np.mean(z**2) < 1.6
    assert np.mean(np.abs(z) < 1.96) > 0.85
