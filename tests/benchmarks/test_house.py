# SPDX-License-Identifier: Apache-2.0
"""What counts in the tables of docs/architecture.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FILE = '''# a comment
"""A docstring
of two lines."""

import os
from sys import (
    path,
)


class Thing:
    """Another."""

    text = """two lines
of code"""

    def walk(self):
        # a comment
        return os.walk(path[0])  # one more
'''


def test_docstrings_comments_imports_and_blanks_are_no_code(tmp_path):
    files = ("top.py", "room/__init__.py", "room/deep/one.py")
    for name in (*(f"dpcohort/{file}" for file in files), "lab/dpcohort_lab/one.py"):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(FILE)
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "house.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[2:] == [
        "| room | 2 | 2 | 38 | 10 |",
        "| top level | 1 | 1 | 19 | 5 |",
        "| **all** | 3 | 3 | 57 | 15 |",
        "| lab, apart | 1 | 1 | 19 | 5 |",
    ]


FORKED = """
class Plan:
    schedule: object

class CappedPlan:
    caps: object

class TrainingPlan(Protocol):
    schedule: object

class RunLedger: ...

def lead(engine, plan, state):
    rounds = engine.rounds(state)
    while state.next_round < plan.training.rounds:
        for part in range(2):
            next(rounds)
    for name in plan.names:
        print(name)

def follow(engine, plan):
    for record in led_rounds(engine):
        print(record, isinstance(plan, Plan | None), isinstance(plan, dict))

class Other:
    def __eq__(self, other):
        return isinstance(other, Plan)
"""


def test_loops_plans_ledgers_and_forks_are_counted_by_what_they_do(tmp_path):
    (tmp_path / "dpcohort" / "deploy").mkdir(parents=True)
    (tmp_path / "dpcohort" / "core.py").write_text(FORKED)
    (tmp_path / "dpcohort" / "deploy" / "own.py").write_text("class ClientLedger: ...\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "house.py"), str(tmp_path), "--where"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.strip() for line in done.stdout.splitlines()] == [
        "round_loops", "dpcohort.core:15",
        "plans", "dpcohort.core.Plan", "dpcohort.core.CappedPlan",
        "run_ledgers", "dpcohort.core.RunLedger",
        "forks_on_plans", "dpcohort.core:23",
    ]  # fmt: skip
