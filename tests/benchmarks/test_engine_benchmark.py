# SPDX-License-Identifier: Apache-2.0
"""The engine benchmark names its methods apart, and both engines do the steps they count."""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark_module() -> Any:
    spec = importlib.util.spec_from_file_location("engine_bench", ROOT / "benchmarks/engine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_merged_noise_has_a_row_of_its_own(benchmark_module: Any) -> None:
    chosen = benchmark_module.methods(
        Namespace(stack=1, quick=True, opacus_modes=["hooks", "ew", "ghost"])
    )
    assert "dpcohort batched" in chosen
    assert "dpcohort batched, merged noise" in chosen
    records = benchmark_module.make_records((1, 2, 2), "cpu")
    for name in ("dpcohort batched", "dpcohort batched, merged noise"):
        turn = chosen[name](nn.Sequential(nn.Flatten(), nn.Linear(4, 10)), records)
        assert turn() == benchmark_module.COHORT


def test_every_special_way_can_be_left_out(benchmark_module: Any) -> None:
    arguments = Namespace(device="cpu", turns=1, cpu_time=False)

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(2, 10))  # fmt: skip

    for name in benchmark_module.SPECIAL_WAYS:
        ms, ratio = benchmark_module.compare(name, build, (1, 3, 3), arguments, merged=False)
        assert ms > 0
        assert ratio > 0
