# SPDX-License-Identifier: Apache-2.0
"""A private training that is interrupted, resumed and killed, and looked at while it runs.

What it leaves is no contradiction: it is unfinished, and what it counts holds. Each training is a
process of its own, forked from one that trains nothing, which this file is as a program. It also
kills and resumes a simulation, which ends in the same bytes (``benchmarks/resume.py``).
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import dpcohort
import dpcohort.runs._folder
import dpcohort.runs._journal
import dpcohort.runs._recorder
from dpcohort import Population, Training, load_dataset, make_plan
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.plan import Plan
from dpcohort.runs import train, verify_run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

SECRET = replace(load_dataset("digits"), public=False)
#: What a training loads on the way; each would load it again.
HEAVY = ("torch._dynamo", "torch._functorch.apis", "safetensors.numpy", "sklearn.metrics",
         "dp_accounting.pld.accountant", "scipy.stats")  # fmt: skip
PEOPLE = Population.from_arrays(sizes=[60] * 3, epsilon=[1.0, 2.0, 4.0], delta=1e-5)
SETTINGS = Training(rounds=6, cohort_size=2, batch_size=20, dimension=650)
PLANS = {
    "fixed": lambda: make_plan(PEOPLE, SETTINGS, selection="unbiased", seed=1),
    "adaptive": lambda: make_adaptive_plan(PEOPLE, SETTINGS, rule="rpow-d", seed=1),
}


def in_child(work: Callable[[], object]) -> int:
    """Do the work in a process of its own; the signal that ended it, or minus its exit code."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def attempt(plan: Plan, out: Path, owner: str = "", name: str = "", time: int = 0) -> None:
    """Train or go on; end when a function is called for the nth time, by Ctrl-C or kill -9."""
    calls = 0
    homes = {
        "training": dpcohort.runs._recorder,
        "journal": dpcohort.runs._journal,
        "folder": dpcohort.runs._folder,
    }
    home, _, how = owner.partition(" ")

    def ending(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        found = before(*arguments, **named) if how != "killed before" or calls != time else None
        if calls == time:
            if how == "interrupted":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    if home:
        before = getattr(homes[home], name)
        setattr(homes[home], name, ending)
    train(
        plan, "logistic", SECRET, device="cpu", out=out,
        resume=True, checkpoint_every=2,
    )  # fmt: skip


def looked_at(out: Path, plan: Plan) -> None:
    """It holds, and says how much is counted, which is what the ledger counts."""
    found = verify_run(out, method="pld")
    assert found.holds, [one for one in found.findings if one.kind != "note"]
    key = "cohort" if plan.participation.deciding else "draws"
    lines = (out / "ledger.jsonl").read_text().splitlines()
    assert found.rounds == sum(key in json.loads(line) for line in lines)
    assert found.finished == (out / "result.json").exists()
    if not found.finished:
        assert any("unfinished: " in one.message for one in found.findings)


#: How a training ends, one attempt after the other: whose function, how, and in which call.
ENDS = {
    "killed after counting": [("journal killed", "append_line", 4)],
    "killed in a round": [("training killed", "append_line", 3)],
    "killed before a checkpoint": [("training killed before", "write_checkpoint", 1)],
    "killed after a checkpoint": [("training killed", "write_checkpoint", 2)],
    "interrupted": [("training interrupted", "append_line", 3)],
    "interrupted, resumed and killed": [
        ("training interrupted", "append_line", 2),
        ("journal killed", "append_line", 2),
    ],
    "interrupted twice, then killed": [
        ("training interrupted", "append_line", 2),
        ("training interrupted", "append_line", 2),
        ("training killed", "append_line", 1),
    ],
    "killed among its receipts": [
        ("training interrupted", "append_line", 2),
        ("folder killed before", "sync_folder", 1),
    ],
    "killed with receipts and no model": [("training killed before", "_save_weights", 1)],
    "killed with a model and no result": [("training killed before", "write_sealed", 1)],
}
#: Those that touch what an adaptive run keeps beside a fixed one; ``DPCOHORT_ENDS=1`` tries all.
ADAPTIVE_ENDS = ("killed after counting", "killed in a round", "interrupted, resumed and killed")


def ends(kind: str, folder: Path) -> None:
    """Every way to end a training, and to go on."""
    plan = PLANS[kind]()
    few = kind == "adaptive" and not os.environ.get("DPCOHORT_ENDS")
    for words in ADAPTIVE_ENDS if few else ENDS:
        out = folder / words
        for owner, name, time in ENDS[words]:
            ended = in_child(lambda: attempt(plan, out, owner, name, time))  # noqa: B023
            assert ended == (-130 if "interrupted" in owner else signal.SIGKILL), (words, ended)
            looked_at(out, plan)
        assert in_child(lambda: attempt(plan, out)) == 0, words  # noqa: B023
        looked_at(out, plan)
        assert verify_run(out, method="pld").finished


def looks(folder: Path) -> None:
    """A verification after the other while a training goes on, to its end."""
    more = replace(SETTINGS, rounds=15)
    plan, out = make_plan(PEOPLE, more, selection="unbiased", seed=1), folder / "run"
    child, times = os.fork(), 0
    if child == 0:
        attempt(plan, out)
        os._exit(0)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if (out / "run.json").exists():
            found = verify_run(out, method="pld")
            assert found.holds, found.findings
            times += 1
    assert times > 1
    looked_at(out, plan)


def test_neither_a_crash_nor_a_look_is_a_contradiction(tmp_path):
    root = str(Path(dpcohort.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 of 1 identical" in done.stdout


if __name__ == "__main__":
    for module in HEAVY:
        importlib.import_module(module)
    for kind in PLANS:
        ends(kind, Path(sys.argv[-1]) / kind)
    looks(Path(sys.argv[-1]))
    resume = Path(__file__).parents[2] / "benchmarks" / "resume.py"
    sys.argv = [str(resume), "--rounds", "4", "--kills", "1"]
    sys.exit(runpy.run_path(str(resume))["main"]())
