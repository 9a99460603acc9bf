# SPDX-License-Identifier: Apache-2.0
"""The documentation builds offline, and a warning is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_it_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html",
         str(ROOT / "docs"), str(tmp_path / "html"), "-d", str(tmp_path / "doctrees")],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "reference" / "api.html").read_text()
    assert "dpcohort.make_plan" in page
    for document in (ROOT / "docs").rglob("*.md"):
        built = (tmp_path / "html" / document.relative_to(ROOT / "docs")).with_suffix(".html")
        assert built.exists(), document
    assert "https://" not in _external(tmp_path / "html" / "index.html")


def _external(page: Path) -> str:
    """What a reader's browser would fetch from elsewhere: scripts, styles, pictures."""
    lines = page.read_text().splitlines()
    return "\n".join(line for line in lines if "<script src" in line or "stylesheet" in line)
