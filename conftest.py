# SPDX-License-Identifier: Apache-2.0
"""Tests see the entry points of this checkout's lab, also those newer than its installation."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path


def _announce(folder: Path) -> None:
    """Metadata of dpcohort-lab as an installation from this checkout would have them."""
    text = (Path(__file__).parent / "lab" / "pyproject.toml").read_text()
    groups = tomllib.loads(text)["project"]["entry-points"]
    info = folder / "dpcohort_lab-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dpcohort-lab\nVersion: 0.1.0\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


_PLACE = Path(tempfile.mkdtemp(prefix="dpcohort-lab-"))
_OWNER = os.getpid()


@atexit.register
def _remove() -> None:
    if os.getpid() == _OWNER:  # a copy of this process may end before it
        shutil.rmtree(_PLACE, ignore_errors=True)


_announce(_PLACE)
sys.path.insert(0, str(_PLACE))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(_PLACE), *filter(None, [os.environ.get("PYTHONPATH")])]
)
