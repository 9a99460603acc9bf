# SPDX-License-Identifier: Apache-2.0
"""The golden files, the script that makes them, and whether bits can be compared here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_make", HERE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def golden():
    """``golden("runs")`` is what ``runs.json`` holds."""
    return lambda name: json.loads((HERE / f"{name}.json").read_text())


@pytest.fixture(autouse=True)
def _one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def _probes(make, golden) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = make.probe()
    torch.set_num_threads(before)
    return found, golden("probe")


@pytest.fixture(scope="session")
def exact_plans(_probes) -> bool:
    """Whether numpy and scipy compute here as where the files were made, to the bit."""
    here, there = _probes
    return here["planning"] == there["planning"]


@pytest.fixture(scope="session")
def exact(_probes, exact_plans) -> bool:
    """Whether torch does so too; elsewhere numbers are compared roughly, and hashes not at all."""
    here, there = _probes
    return exact_plans and here["training"] == there["training"]


@pytest.fixture
def same(make, exact):
    """Assert that today's code gives what is in a golden file."""

    def check(found: Any, wanted: Any) -> None:
        assert make.different(found, wanted, exact=exact) == []

    return check
