# SPDX-License-Identifier: Apache-2.0
"""How long a command takes in a new process, against ``import numpy, scipy`` in the same run.

``python benchmarks/startup.py`` starts every side once to fill the caches of byte code (its own,
so that both sides find one), and then all of them in turns. The ratio is the median over the
turns, of wall times and of processor times; on a busy machine only the latter says much. Modules
are those of dpcohort that were loaded. ``--root`` measures another checkout.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CLIENTS = """id,size,epsilon,delta
a,600,0.2,1e-5
b,600,1,1e-5
c,600,8,1e-5
d,600,4,1e-5
"""
#: What the others are measured against.
BASE = "import numpy, scipy"
SIDES: dict[str, list[str]] = {
    BASE: ["-c", BASE],
    "dpcohort --version": ["-m", "dpcohort", "--version"],
    "dpcohort --help": ["-m", "dpcohort", "--help"],
    "dpcohort plan --clients (4)": ["-m", "dpcohort", "plan", "--clients", "clients.csv"],
    "the same with --rounds 50": [
        *["-m", "dpcohort", "plan", "--clients", "clients.csv"],
        *["--rounds", "50"],
    ],
}


class Start(NamedTuple):
    """Seconds of one start, by the clock and of the processor."""

    wall: float
    cpu: float


def start(words: list[str], folder: Path, environment: Mapping[str, str]) -> Start:
    """Run Python with these words once."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, check=True, capture_output=True
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Start(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def modules(words: list[str], folder: Path, environment: Mapping[str, str]) -> int:
    """How many modules of dpcohort these words load."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    return sum(name.split(".")[0] == "dpcohort" for name in names)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=15)
    options.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    asked = options.parse_args()
    turns = asked.turns
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "clients.csv").write_text(CLIENTS)
        root = str(asked.root.resolve())
        environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(":;"),
            "PYTHONPYCACHEPREFIX": str(folder / "cache"),
        }
        counts = {name: modules(words, folder, environment) for name, words in SIDES.items()}
        found: dict[str, list[Start]] = {name: [] for name in SIDES}
        for _ in range(turns):
            for name, words in SIDES.items():
                found[name].append(start(words, folder, environment))
    print(f"{turns} turns; seconds are medians, ratios are against {BASE}")
    print(f"{'':30} {'wall':>8} {'ratio':>6} {'cpu':>8} {'ratio':>6} {'modules':>8}")
    for name, starts in found.items():
        columns = f"{name:30}"
        for part in Start._fields:
            taken = [getattr(one, part) for one in starts]
            base = [getattr(one, part) for one in found[BASE]]
            ratio = statistics.median(a / b for a, b in zip(taken, base, strict=True))
            columns += f" {statistics.median(taken):7.3f}s {ratio:5.2f}×"
        print(f"{columns} {counts[name]:8}")


if __name__ == "__main__":
    main()
