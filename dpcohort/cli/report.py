# SPDX-License-Identifier: Apache-2.0
"""``dpcohort report``: one HTML file about a run, several runs, or a reproduction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption

__all__ = ["command"]

#: Findings named on the terminal; the page has all.
_SHOWN = 5


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN... | RESULT.json",
            help="Run folders (or folders of seeds), or a result of dpcohort reproduce.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    method: Annotated[
        str, typer.Option(help="Who verifies the promises: pld (fast), auto or dp-accounting.")
    ] = "pld",
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained page: charts, privacy table, and a what-if explorer."""
    from dpcohort.report.html.page import write_report

    report = write_report(sources, out, method=method)
    broken = [problem for problem in report.problems if problem.kind == "broken"]
    if as_json:
        print_json(
            {
                "out": str(out),
                "kind": report.kind,
                "headline": report.headline.sentence,
                "problems": [
                    {"kind": p.kind, "where": p.where, "message": p.message}
                    for p in report.problems
                ],
            }
        )
    else:
        console.print(report.headline.sentence, markup=False, soft_wrap=True)
        for problem in broken[:_SHOWN]:
            console.print(
                f"  {problem.where}: {problem.message}", style="red", markup=False, soft_wrap=True
            )
        left = len(report.problems) - min(_SHOWN, len(broken))
        if left:
            console.print(f"  {left} more on the page: missing, broken or noted.", markup=False)
        megabytes = out.stat().st_size / 1e6
        console.print(f"Wrote {out} ({megabytes:.1f} MB).", markup=False, soft_wrap=True)
    if open_it:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
