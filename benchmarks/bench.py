# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks that compare two sides; docs/reference/benchmarks/log.md gets their output.

    make bench                                       # all but the optional ones, in full
    python benchmarks/bench.py --quick               # small forms, a few minutes
    python benchmarks/bench.py --only solver guard   # some; the optional ones only so

Each benchmark has a block of its own: the command, the machine and how
busy it was, and what was printed. A benchmark that fails keeps the block it had, and is named.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "benchmarks" / "log.md"
#: Titles, and the options of the script of that name in the full and in the small form.
BENCHES = {
    "solver": ("Problem 1 against CVXPY with CLARABEL", "", "--quick"),
    "calibration": ("Calibration against dp-accounting", "", "--tuples 20"),
    "certificate": ("Certificates against dp-accounting", "100 20", "30 5"),
    "plan": ("From a CSV to a plan", "", "--clients 100000 --cohort-size 10"),
    "scale": ("Memory with few and with many clients", "", "--clients 1000 100000"),
    "engine": (
        "A client step against plain SGD and Opacus",
        "--quick",
        "--quick --threads 1 --cpu-time --networks mnist-26k mnist-825k",
    ),
    "private_noise": ("Private noise against that of simulation", "--normals 1e9", ""),
    "guard": ("The guard against the engine and torch", "", "--quick"),
    "features": ("Second-order features", "--time", "--time --made-up --images 500"),
    "startup": ("The start of a command against numpy and scipy", "", "--turns 5"),
    "flower_round": ("A round over Flower against an empty one", "", "--nodes own --rounds 4"),
    "peers": (
        "A round against Flower's simulation with Opacus, and pfl",
        "--environments out/peers",
        "--environments out/peers --turns 3",
    ),
}
#: These start real federations or install packages: only where they are named.
OPTIONAL = {"flower_round", "peers"}
#: These use all cores; the others one thread, since idle ones of a BLAS count as well.
ALL_CORES = {"engine", "features", "startup", "flower_round", "peers"}


def command_of(name: str, *, quick: bool = False) -> str:
    """What a user would type for a benchmark."""
    threads = "" if name in ALL_CORES else "OMP_NUM_THREADS=1 "
    return f"{threads}python benchmarks/{name}.py {BENCHES[name][1 + quick]}".rstrip()


def machine() -> str:
    """Processor, cores and versions, without a date."""
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "torch"))
    cores = len(os.sched_getaffinity(0))
    python = platform.python_version()
    return f"{(models or [platform.machine()])[0]}, {cores} cores; Python {python}, {libraries}"


def run(command: str) -> str:
    """The block of a command: how it was run, and what it printed.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    setting, _, call = command.rpartition("python ")
    env = {**os.environ, **dict([setting.strip().split("=")] if setting else [])}
    load, began = os.getloadavg()[0], time.perf_counter()
    done = subprocess.run(
        [sys.executable, *call.split()],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    took = time.perf_counter() - began
    busy = f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    said = f"{machine()}; {busy}; {took:.0f} s in all"
    return f"`{command}`  \n{said}\n\n```text\n{done.stdout.strip()}\n```\n"


def blocks(page: str) -> dict[str, str]:
    """The blocks that a page has, by title."""
    return dict(re.findall(r"^## ([^\n]+)\n\n(.*?)(?=^## |\Z)", page, re.M | re.S))


def with_blocks(page: str, found: dict[str, str]) -> str:
    """The page with these blocks in the order of the list; its head does not change."""
    head = page.partition("\n## ")[0].rstrip("\n")
    titles = [title for title, *_ in BENCHES.values() if title in found]
    ordered = "".join(f"\n## {title}\n\n{found[title].strip()}\n" for title in titles)
    return f"{head}\n{ordered}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(BENCHES), metavar="NAME",
                        help=", ".join(BENCHES))  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small forms")
    given = parser.parse_args()
    failed = []
    for name in given.only or [name for name in BENCHES if name not in OPTIONAL]:
        command = command_of(name, quick=given.quick)
        print(f"{name}: {command}", flush=True)
        try:
            block = run(command)
        except subprocess.CalledProcessError as error:
            failed.append(name)
            print(f"{name} failed:\n{error.stderr.strip()[-2000:]}", file=sys.stderr)
            continue
        print(block.partition("\n\n")[2], flush=True)
        page = PAGE.read_text()  # again each time: a run takes minutes
        PAGE.write_text(with_blocks(page, {**blocks(page), BENCHES[name][0]: block}))
    sys.exit(f"failed, and left as they were: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
