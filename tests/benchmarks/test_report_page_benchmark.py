# SPDX-License-Identifier: Apache-2.0
"""The report benchmark runs and prints its lines."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_a_small_page_is_opened():
    pytest.importorskip("playwright")
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no Chromium: make browser installs it where it can")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "report_page.py"), "--clients", "5",
         "--times", "1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seconds = dict(re.findall(r"^(first paint|loaded|first chart) +([\d.]+) s$", done.stdout, re.M))
    assert 0 < float(seconds["first paint"]) <= float(seconds["first chart"])
