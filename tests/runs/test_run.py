# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dpcohort.errors import DataMissingError, FileFormatError, InputError, VerificationError
from dpcohort.runs import Run

from .conftest import ROUNDS


def test_is_read_back_whole(finished, plan):
    run = Run.load(finished)
    assert run.plan == plan
    assert run.is_finished
    assert run.seed == 5
    assert not run.is_private
    assert set(run.model) == {"1.weight", "1.bias"}
    curve = run.curve()
    assert curve.rounds.tolist() == [2, 4, 6]
    assert curve.accuracy[-1] == run.test_accuracy
    assert np.isfinite(curve.loss).all()
    assert np.array_equal(run.ledger.draws, plan.counts)
    assert np.array_equal(run.partition.sizes, plan.population.sizes)


def test_receipts_by_name_and_of_the_drawn(finished, plan):
    run = Run.load(finished)
    assert len(run.receipts()) == int(plan.drawn.sum())
    assert run.receipt("client-3").client == "client-3"
    with pytest.raises(InputError, match="client-3"):
        run.receipt("client3")


def test_half_a_run_is_read_as_far_as_it_came(finished):
    lines = (finished / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (finished / "rounds.jsonl").write_bytes(lines[0] + lines[1][:10])
    (finished / "model.safetensors").unlink()
    run = Run.load(finished)
    assert run.rounds_done == 1 < ROUNDS
    assert not run.is_finished
    assert run.curve().rounds.size == 0
    with pytest.raises(InputError, match="no test result"):
        _ = run.test_accuracy


def test_broken_files_are_named(finished):
    (finished / "rounds.jsonl").write_text('{"round": 0}\n')
    with pytest.raises(FileFormatError, match=r"rounds.jsonl, line 1"):
        Run.load(finished)
    (finished / "rounds.jsonl").write_text("")
    (finished / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(VerificationError, match=r"model\.safetensors is damaged"):
        Run.load(finished)
    with pytest.raises(DataMissingError, match="not a run"):
        Run.load(finished / "receipts")


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError(f"reading a run imported {name}")
sys.meta_path.insert(0, Refuse())
from dpcohort.runs import Run, compare_runs, verify_run
run = Run.load(sys.argv[1])
assert run.is_finished and verify_run(sys.argv[1]).holds
assert compare_runs([run], [run]).difference.mean == 0
"""


def test_reading_a_run_needs_no_torch(finished):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, str(finished)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
