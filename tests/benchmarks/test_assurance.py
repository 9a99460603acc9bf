# SPDX-License-Identifier: Apache-2.0
"""docs/assurance.md is what the recorded results say, and every test it names is there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = {
    "promise": "It holds.",
    "attack": "Everything | at once",
    "tries": 12000,
    "result": "it held",
    "test": "tests/benchmarks/test_assurance.py::test_a_new_result_finds_its_place",
    "command": "make it",
    "machine": "2 cores",
    "date": "2026-01-31",
}


@pytest.fixture(scope="module")
def assurance():
    spec = importlib.util.spec_from_file_location("assurance", ROOT / "benchmarks" / "assurance.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["assurance"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["assurance"]


def test_the_page_is_what_the_files_say():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "assurance.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_test_in_it_is_there(assurance):
    named = [row.test for rows in assurance.recorded().values() for row in rows]
    assert named
    is_test = assurance._sibling("mutants").is_test
    assert [node for node in named if not is_test(node, ROOT)] == []


def test_a_new_result_finds_its_place(assurance, tmp_path):
    (tmp_path / "noise-tail.json").write_text(json.dumps(ROW))
    (tmp_path / "zeal.json").write_text(json.dumps([ROW, {**ROW, "tries": "all"}]))
    page = assurance.page(assurance.recorded(tmp_path))
    lines = [line for line in page.splitlines() if line.startswith("| It holds. | Everything")]
    assert len(lines) == 3
    assert "Everything \\| at once | 12,000 | it held" in lines[0]
    assert "binomial" in lines[0]  # the peer's figure of its place
    assert "no figure found" in lines[1]
    assert page.count(assurance.MISSING) == len(assurance.FRAME) - 1


def test_what_a_script_records_is_a_row(assurance, tmp_path):
    told = {key: ROW[key] for key in ("tries", "result", "test", "command")}
    path = assurance.record("soak", **told, folder=tmp_path)
    (row,) = assurance.rows_of(path)
    assert (row.tries, row.result, row.test) == (12000, "it held", ROW["test"])
    assert row.promise == "Nothing grows over a long private run."
    assert row.machine
    assert row.date


@pytest.mark.parametrize(
    "change", [{"tries": None}, {"result": 3}, {"extra": "x"}], ids=["type", "number", "key"]
)
def test_what_is_no_row_is_refused(assurance, tmp_path, change):
    (tmp_path / "bad.json").write_text(json.dumps({**ROW, **change}))
    with pytest.raises(SystemExit, match=r"bad\.json"):
        assurance.recorded(tmp_path)


def test_what_is_said_of_opacus_is_so():
    """One record that is not a number leaves nothing of the batch's sum."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        model = GradSampleModule(torch.nn.Linear(2, 1))
        optimiser = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=3,
        )
        model(torch.tensor([[1.0, 0.0], [float("nan"), 1.0], [0.0, 2.0]])).sum().backward()
        optimiser.step()
    assert all(torch.isnan(p.grad).all() for p in model.parameters())


def test_what_is_said_of_flower_is_so():
    """Its noise is that of NumPy's global generator: the same seed, the same noise."""
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace

    before, drawn = np.random.get_state(), []
    for _ in range(2):
        np.random.seed(7)
        update = [np.zeros(3)]
        add_gaussian_noise_inplace(update, 1.0)
        drawn.append(update[0].tolist())
    np.random.set_state(before)
    assert drawn[0] == drawn[1]
