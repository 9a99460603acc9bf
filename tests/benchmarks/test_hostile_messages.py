# SPDX-License-Identifier: Apache-2.0
"""A few hundred of the hostile messages; ``python benchmarks/hostile_messages.py`` sends 33,000."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "hostile_messages.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("hostile_messages", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_nothing_leaves_a_guard_but_what_its_terms_allow(script, tmp_path):
    outcomes, wrong = script.attack(400, tmp_path)
    assert wrong == []
    assert outcomes["DrawUpdate"] > 5  # some messages are within the terms
    assert outcomes["terms"] > 20
    assert outcomes["not understood"] > 50
