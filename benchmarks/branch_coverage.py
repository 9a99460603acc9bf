# SPDX-License-Identifier: Apache-2.0
"""Branch coverage of each package by its own tests, held to the floors of coverage.toml.

``python benchmarks/branch_coverage.py`` measures every package of dpcohort (``make coverage``) and
fails if one is below its floor; names of packages measure only those. ``--record`` writes what was
measured as the new floors, rounded down. This is slow and no part of the default suite.

A package's own tests are tests/PACKAGE and the examples in its docstrings; ``lab`` is dpcohort-lab
with lab/tests, and ``top`` are the modules beside the packages, with the tests directly under
tests/. What other packages' tests reach does not count, nor what runs in a process of its own
(servers, guards, commands that are started) or needs a GPU: a floor says what is reached at least,
on a machine without one. Triton's kernels are left out: they are compiled from their source, and no
machine runs them as Python.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ROOT / "benchmarks" / "coverage.toml"
TOP = "top"
#: The laboratory, which is a distribution of its own.
LAB = "lab"

_HEAD = """\
# Branch coverage, in per cent, that each package's own tests must reach: `make coverage`.
# Measured by benchmarks/branch_coverage.py, whose head says what counts; rounded down.
"""


def packages() -> list[str]:
    """The packages of dpcohort, the laboratory, and the modules beside them under one name."""
    found = [path.parent.name for path in ROOT.glob("dpcohort/*/__init__.py")]
    return [*sorted([*found, LAB]), TOP]


def measured(package: str) -> tuple[float, str]:
    """Branch coverage of a package by its own tests, in per cent, and what their failures say."""
    if package == TOP:
        beside = (path for path in ROOT.glob("dpcohort/*.py") if path.name != "__main__.py")
        tests = [str(path) for path in (*ROOT.glob("tests/test_*.py"), *beside)]
        own = "dpcohort/*.py"
    elif package == LAB:
        tests, own = ["lab/tests", "lab/dpcohort_lab"], "lab/dpcohort_lab/**/*.py"
    else:
        tests = [f"tests/{package}", f"dpcohort/{package}"]
        own = f"dpcohort/{package}/**/*.py"
    files = ",".join(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(own)))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COVERAGE_FILE": f"{folder}/data"}

        def coverage(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "coverage", *words]
            return subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )

        done = coverage("run", "--branch", f"--include={files}", "-m", "pytest", "-q", *tests)
        said = (done.stdout + done.stderr)[-4000:] if done.returncode else ""
        settings = Path(folder) / "settings"
        settings.write_text("[report]\nexclude_also =\n    @triton.jit\n")
        report = f"{folder}/report.json"
        if coverage("json", "-q", f"--rcfile={settings}", "-o", report).returncode:
            raise SystemExit(f"{package}: its tests could not be measured\n{said}")
        totals = json.loads(Path(report).read_text())["totals"]
    return float(totals["percent_covered"]), said  # lines and branches, as coverage sums them up


def floors() -> dict[str, float]:
    """The floors that are written down."""
    return tomllib.loads(FLOORS.read_text()) if FLOORS.exists() else {}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and compare or record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", help="which; all")
    parser.add_argument("--record", action="store_true", help="write the floors anew")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="packages at once")
    given = parser.parse_args(arguments)
    unknown = set(given.packages) - set(packages())
    if unknown:
        parser.error(f"no package: {', '.join(sorted(unknown))}; there are {', '.join(packages())}")
    wanted, known, below = given.packages or packages(), floors(), []
    with ThreadPoolExecutor(given.jobs) as pool:
        for package, (found, failures) in zip(wanted, pool.map(measured, wanted), strict=True):
            floor = known.get(package, 0.0)
            missing = found < floor and not given.record
            below += [package] if missing or failures else []
            told = f"floor {floor:.1f}{', BELOW' if missing else ''}"
            print(f"{package:<12} {found:6.2f} %  {told}", flush=True)
            if failures:
                print(f"The tests of {package} fail:\n{failures}", flush=True)
            known[package] = int(10 * found) / 10
            if given.record:
                lines = (f"{name} = {known[name]:.1f}\n" for name in packages() if name in known)
                FLOORS.write_text(_HEAD + "".join(lines))
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
