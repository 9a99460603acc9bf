# SPDX-License-Identifier: Apache-2.0
"""``dpcohort report``: a self-contained page of what was planned or trained."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from dpcohort.cli._terminal import JsonOption, console, print_json, say
from dpcohort.report.html._page import write_report

if TYPE_CHECKING:
    pass


#: Findings named on the terminal; the page has all.
_SHOWN = 5


def report(
    sources: Annotated[
        list[Path],
        Argument(
            metavar="RUN... | RESULT.json",
            help="Run folders (or folders of seeds), or a result of dpcohort reproduce.",
        ),
    ],
    out: Annotated[Path, Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    open_it: Annotated[bool, Option("--open", help="Show it in the browser.")] = False,
    method: Annotated[
        str, Option(help="Who verifies the promises: pld (fast), auto or dp-accounting.")
    ] = "pld",
    worth: Annotated[
        Path | None,
        Option(help="What dpcohort worth CONFIG -o FILE saved, to show who should raise epsilon."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained page: charts, receipts and the privacy table.

    Exit code 1 if something in it is broken, which the page then says at its head.
    """
    written = write_report(sources, out, method=method, worth=worth)
    broken = [problem for problem in written.problems if problem.kind == "broken"]
    if as_json:
        print_json(
            out=str(out),
            kind=written.kind,
            headline=written.headline.sentence,
            problems=[asdict(problem) for problem in written.problems],
        )
    else:
        say(written.headline.sentence)
        for problem in broken[:_SHOWN]:
            say(f"  {problem.where}: {problem.message}", style="red")
        left = len(written.problems) - min(_SHOWN, len(broken))
        if left:
            console.print(f"  {left} more on the page: missing, broken or noted.")
        megabytes = out.stat().st_size / 1e6
        say(f"Wrote {out} ({megabytes:.1f} MB).")
    if open_it:
        webbrowser.open(out.resolve().as_uri())
    if broken:
        raise typer.Exit(1)
