# SPDX-License-Identifier: Apache-2.0
"""The ledger benchmark runs and prints its table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_short_run_prints_a_line_for_each_action(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "ledger.py"),
            "--draws",
            "5",
            "--folder",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+) and ([\d.]+)$", done.stdout, re.M)
    assert [row[0] for row in rows] == ["reserve", "release", "fdatasync"]
    assert all(float(p50) <= float(p99) for _, p50, p99, _, _ in rows)
    assert list(tmp_path.iterdir()) == []
