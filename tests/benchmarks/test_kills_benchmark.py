# SPDX-License-Identifier: Apache-2.0
"""A guard killed at some of the points where its files change; ``DPCOHORT_KILLS=1`` for all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: All points of 28 draws are some 2,300 kills and take minutes.
WHOLE = ["--draws", "28"] if os.environ.get("DPCOHORT_KILLS") else ["--draws", "1", "--every", "12"]


def kills(*arguments):
    place = ["--folder", "/dev/shm"] if os.access("/dev/shm", os.W_OK) else []
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "kills.py"), *arguments, *place],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_kill_loses_a_count_or_repeats_a_release():
    done = kills(*WHOLE)
    assert done.returncode == 0, done.stdout + done.stderr
    (count,) = re.findall(r"^(\d+) kills .*: 0 wrong", done.stdout, re.MULTILINE)
    assert int(count) >= 10
