# SPDX-License-Identifier: Apache-2.0
"""What counts as code in the table of docs/architecture.md."""

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
    for name in ("top.py", "room/__init__.py", "room/deep/one.py"):
        place = tmp_path / "dpcohort" / name
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
    ]
