# SPDX-License-Identifier: Apache-2.0
"""A short soak, and that its judge sees what grows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("soak", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # where a dataclass looks up its types
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak"]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_short_soak_is_flat(soak, tmp_path, capsys):
    flat, words = soak.soak(40, engine="batched", device="cpu", folder=tmp_path)
    assert flat, words
    assert len(capsys.readouterr().out.splitlines()) == 20


@pytest.mark.parametrize(
    ("grows", "flat"), [((0, 0, 0), True), ((4096, 0, 0), False), ((0, 1, 0), False),
                        ((0, 0, 1), False)]
)  # fmt: skip
def test_the_judge_sees_what_grows(soak, grows, flat):
    watch = soak.Watch(every=1)
    for done in range(500, 10_001, 500):
        memory, files, threads = (step * done for step in grows)
        watch.seen.append((done, 2**28 + memory, 8 + files // 5000, 1 + threads // 5000))
    assert watch.verdict()[0] is flat
