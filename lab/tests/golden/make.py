# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files of the laboratory, as ``tests/golden/make.py`` does those of dpcohort.

::

    OMP_NUM_THREADS=1 python lab/tests/golden/make.py FOLDER

writes them into FOLDER. They too are renewed only when a format changes on purpose, never to make a
test pass.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
#: The golden files of dpcohort, and the script that makes them.
PRODUCT = HERE.parents[2] / "tests" / "golden"


def product() -> ModuleType:
    """The script of dpcohort: commands in this process, probes, and the comparison of values."""
    spec = importlib.util.spec_from_file_location("golden_make", PRODUCT / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_MAKE = product()


def rule_pairs(scratch: Path) -> Any:
    """Every aggregation at once by ``dpcohort compare-rules --aggregation all``."""
    words = _MAKE.done(
        "compare-rules", PRODUCT / "base.toml", "--selection", "privacy-aware", "--aggregation",
        "all", "--seeds", "1", "--csv", scratch / "pairs.csv", "--json",
    )  # fmt: skip
    return _MAKE._timeless(json.loads(words))


_SCHEMES = "dp-fedavg,udp-crd,model-clipping"


def schemes(scratch: Path) -> Any:
    """Schemes of the field by ``dpcohort schemes``, without times and titles."""
    words = _MAKE.done("schemes", PRODUCT / "base.toml", "--schemes", _SCHEMES, "--json")
    return [
        {key: value for key, value in one.items() if key not in ("seconds", "card", "notes")}
        for group in json.loads(words)["schemes"]
        for one in group
    ]


def reproduced(scratch: Path) -> Any:
    """The paper's biased baseline in both forms, by ``dpcohort reproduce``."""
    out = scratch / "reproduced"
    _MAKE.done("reproduce", HERE / "biased.toml", "--out", out, "--device", "cpu", "--json")
    cells = sorted((out / "cells").rglob("*.json"))
    return {path.stem: _MAKE._timeless(json.loads(path.read_text())) for path in cells}


#: What is computed, by its name.
COMPUTED = {"rule pairs": rule_pairs, "schemes": schemes, "reproduced": reproduced}


def surface() -> dict[str, Any]:
    """What users type: the commands that the laboratory adds, its schemes and its recipes."""
    from dpcohort_lab import COMMANDS

    every = _MAKE.commands()
    return {
        "commands": {f"dpcohort {name}": every[f"dpcohort {name}"] for name in COMMANDS},
        "schemes": sorted(one["name"] for one in json.loads(_MAKE.done("schemes", "--json"))),
        "recipes": sorted(
            one["name"] for one in json.loads(_MAKE.done("reproduce", "--list", "--json"))
        ),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    _MAKE.one_thread()
    with tempfile.TemporaryDirectory() as place:
        values = {name: make(Path(place)) for name, make in COMPUTED.items()}
    _MAKE._write(folder / "computed.json", values)
    _MAKE._write(folder / "surface.json", surface())
