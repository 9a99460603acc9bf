# SPDX-License-Identifier: Apache-2.0
"""The guard benchmark runs and prints its lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_quick_run_prints_every_line():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "guard.py"), "--quick"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    begins = [line.split(",")[0] for line in done.stdout.splitlines()]
    assert begins == ["noise", "one step", "a draw over the socket"]
