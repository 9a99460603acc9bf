# SPDX-License-Identifier: Apache-2.0
"""Seeded trainings of the laboratory keep their numbers, and its commands what they take."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
SURFACE = json.loads((HERE / "surface.json").read_text())


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("golden_make_of_the_lab", HERE / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("what", ["rule pairs", "schemes", "reproduced"])
def test_trainings_are_as_they_were(make, what, tmp_path):
    product = make.product()
    here, there = product.probe(), json.loads((make.PRODUCT / "probe.json").read_text())
    exact = all(here[part] == there[part] for part in here)
    golden = json.loads((HERE / "computed.json").read_text())[what]
    assert product.different(make.COMPUTED[what](tmp_path), golden, exact=exact) == []


@pytest.fixture(scope="module")
def today(make):
    return make.surface()


@pytest.mark.parametrize("command", SURFACE["commands"])
def test_a_command_takes_what_it_took(today, command):
    taken, then = today["commands"][command], SURFACE["commands"][command]
    assert {name: taken.get(name) for name in then} == then
    assert not any(one["required"] for name, one in taken.items() if name not in then)


@pytest.mark.parametrize("kind", ["schemes", "recipes"])
def test_names_of(today, kind):
    assert set(SURFACE[kind]) <= set(today[kind])
