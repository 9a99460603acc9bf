# SPDX-License-Identifier: Apache-2.0
"""``dpcohort new``: a commented config to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcohort.atomic_file import write_text
from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption
from dpcohort.config import EXAMPLES, commented_config
from dpcohort.errors import InputError

__all__ = ["command"]


def command(
    path: Annotated[Path, typer.Argument(help="Where to write it; - for the terminal.")] = Path(
        "dpcohort.toml"
    ),
    example: Annotated[
        str, typer.Option("--from", help=f"Which example: {', '.join(EXAMPLES)}.")
    ] = "hospitals",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented config to start from."""
    text = commented_config(example)
    if str(path) == "-":
        if as_json:
            print_json({"path": "-", "example": example, "text": text})
        else:
            print(text, end="")
        return
    if path.exists() and not force:
        raise InputError.because(f"{path} exists already. Choose another name, or use --force.")
    write_text(path, text)
    if as_json:
        print_json({"path": str(path), "example": example})
        return
    has_data = "\n[data]" in text
    following = f"dpcohort train {path} --out RUN" if has_data else f"dpcohort plan {path}"
    console.print(f"Wrote {path}. Look at it, change it, then: {following}", markup=False)
