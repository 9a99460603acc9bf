# SPDX-License-Identifier: Apache-2.0
"""``dpcohort receipt``: what one client promised and spent in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption
from dpcohort.runs.run import Run

__all__ = ["command"]


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    client: Annotated[str, typer.Argument(help="Id of the client.")],
    as_json: JsonOption = False,
) -> None:
    """Show a client's receipt, counted from the ledger and certified anew."""
    receipt = Run.load(run).receipt(client)
    if as_json:
        print_json(receipt.to_dict())
    else:
        console.print(receipt.text(), markup=False, soft_wrap=True)
    if not receipt.holds:
        raise typer.Exit(1)
