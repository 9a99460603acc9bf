# SPDX-License-Identifier: Apache-2.0
"""The solver benchmark runs and prints its table."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_quick_run_prints_a_line_for_each_size(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["solver.py", "--quick"])
    runpy.run_path(str(ROOT / "benchmarks" / "solver.py"), run_name="__main__")
    printed = capsys.readouterr().out
    rows = re.findall(
        r"^\s*(\d+)\s+([\d.]+)\s+([\d.]+)\s+(\d+)x\s+(\S+)\s+(\S+)$", printed, re.MULTILINE
    )
    assert [int(row[0]) for row in rows] == [10, 100]
    for _, ours, theirs, ratio, gap, excess in rows:
        # The ratio is the quotient of the two printed times, up to their rounding.
        assert abs(float(theirs) / float(ours) - float(ratio)) <= 0.05 * float(ratio) + 1
        assert float(gap) < 1e-12
        assert -1e-12 < float(excess) < 1e-5
