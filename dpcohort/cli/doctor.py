# SPDX-License-Identifier: Apache-2.0
"""``dpcohort doctor``: what is installed, what is missing, and the command for it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from dataclasses import asdict, dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from dpcohort._version import __version__
from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption
from dpcohort.data import describe_datasets

__all__ = ["Finding", "command", "examine"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: what.
        found: its version or value; None if it is missing.
        needed_for: what does not work without it.
        remedy: the command that gets it.
    """

    name: str
    found: str | None
    needed_for: str
    remedy: str | None = None


_PLANNING = "pip install dpcohort"
_TRAINING = "pip install 'dpcohort[train]'"
#: Distribution, module, what it is for, the command that installs it.
_PACKAGES = (
    ("numpy", "numpy", "everything", _PLANNING),
    ("scipy", "scipy", "accounting", _PLANNING),
    ("dp-accounting", "dp_accounting", "the second opinion on every promise", _PLANNING),
    ("pydantic", "pydantic", "reading configs", _PLANNING),
    ("matplotlib", "matplotlib", "pictures", _PLANNING),
    ("torch", "torch", "training", _TRAINING),
    ("scikit-learn", "sklearn", "the embedded data set", _TRAINING),
    ("safetensors", "safetensors", "saving models", _TRAINING),
)


def command(as_json: JsonOption = False) -> None:
    """Show what is installed, what is missing and how to get it."""
    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("", "what", "found", "for"):
        table.add_column(name)
    for finding in findings:
        mark = Text("ok", "green") if finding.found else Text("missing", "yellow")
        table.add_row(mark, finding.name, finding.found or "-", finding.needed_for)
    console.print(table)
    missing = [finding for finding in findings if finding.found is None]
    for remedy in dict.fromkeys(finding.remedy for finding in missing):
        console.print(f"To get what is missing: {remedy}", markup=False)
    if not missing:
        console.print("Everything is here.")


def examine() -> list[Finding]:
    """Look at this machine; imports nothing heavy.

    Example:
        >>> examine()[0].name
        'dpcohort'
    """
    findings = [
        Finding(name="dpcohort", found=__version__, needed_for="this"),
        Finding(
            name="Python",
            found=f"{platform.python_version()} ({sys.platform})",
            needed_for="3.11 or newer",
        ),
        Finding(name="cores", found=str(os.cpu_count()), needed_for="speed"),
    ]
    for distribution, module, purpose, remedy in _PACKAGES:
        findings.append(
            Finding(
                name=distribution,
                found=_version(distribution, module),
                needed_for=purpose,
                remedy=remedy,
            )
        )
    for row in describe_datasets():
        findings.append(
            Finding(
                name=f"data: {row.name}",
                found=row.found,
                needed_for=f"{row.train_records:,} records",
                remedy=row.how_to_get[0] if row.how_to_get else None,
            )
        )
    return findings


def _version(distribution: str, module: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"
