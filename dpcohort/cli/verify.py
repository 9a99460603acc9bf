# SPDX-License-Identifier: Apache-2.0
"""``dpcohort verify``: every promise of a run checked again; exit code 1 if one is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption
from dpcohort.plain_text import one_line
from dpcohort.runs.folder import RunFolder
from dpcohort.runs.verification import Verification, verify_run

__all__ = ["command"]

_SHOWN = 20
#: Characters of one message; a broken receipt may quote anything.
_LONGEST = 2000


def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of seeds.")
    ],
    method: Annotated[
        str, typer.Option(help="The second opinion: auto, pld or dp-accounting.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Replay every receipt from the ledger with the independent accountant."""
    folders = [folder for run in runs for folder in RunFolder.find_all(run)]
    found = [verify_run(folder.path, method=method) for folder in folders]
    if as_json:
        print_json([verification.to_dict() for verification in found])
    else:
        for verification in found:
            _print(verification)
    if not all(verification.holds for verification in found):
        raise typer.Exit(1)


def _print(verification: Verification) -> None:
    word, style = ("holds", "bold green") if verification.holds else ("BROKEN", "bold red")
    console.print(f"{verification.path}: ", end="", markup=False)
    console.print(word, style=style, end="")
    console.print(
        f"; {verification.clients} promises and {verification.rounds} rounds checked, at most "
        f"{verification.tightest:.1%} of a budget spent; plan {verification.plan[:12]}",
        markup=False,
    )
    for finding in verification.findings[:_SHOWN]:
        console.print(
            f"  {finding.kind}: {one_line(finding.subject)}: {one_line(finding.message, _LONGEST)}",
            markup=False,
            soft_wrap=True,
        )
    if len(verification.findings) > _SHOWN:
        console.print(f"  ... and {len(verification.findings) - _SHOWN} more (--json has all)")
