# SPDX-License-Identifier: Apache-2.0
"""Changes a finished private run folder in every way the tests know, and asks ``verify``.

``python benchmarks/tampering.py`` walks a fixed, an adaptive, a distributed and a continued run,
each of three clients: every value of every JSON file, lines of logs, bytes of all other files,
files taken away and added, one at a time. ``--record`` writes it down. Exit
code 1 if a change is not found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from assurance import record  # noqa: E402

from tests.runs.test_tampering import KINDS, walk  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="for the assurance page")
    options = parser.parse_args()
    tried: dict[str, int] = {}
    hidden: list[str] = []
    for kind, make in KINDS.items():
        with tempfile.TemporaryDirectory() as place:
            make(Path(place) / "run")
            tried[kind] = walk(
                Path(place) / "run",
                Path(place) / "copy",
                missed=lambda what, _: hidden.append(what),
            )
        print(f"{kind}: {tried[kind]} changes", flush=True)
    total = sum(tried.values())
    print(f"{total} changes, {total - len(hidden)} found; not found: {hidden or 'none'}")
    if options.record:
        kinds = ", ".join(f"{kind} {count}" for kind, count in tried.items())
        record(
            "tampering",
            tries=total,
            result=f"{total - len(hidden):,} found ({kinds})",
            test="tests/runs/test_tampering.py::test_every_change_is_found",
            command="python benchmarks/tampering.py",
        )
    return 1 if hidden else 0


if __name__ == "__main__":
    sys.exit(main())
