# SPDX-License-Identifier: Apache-2.0
"""The guard benchmark runs and prints its lines."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_quick_run_prints_every_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["guard.py", "--quick"])
    runpy.run_path(str(ROOT / "benchmarks" / "guard.py"), run_name="__main__")
    begins = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert begins == ["noise", "one step", "a draw over the socket"]
