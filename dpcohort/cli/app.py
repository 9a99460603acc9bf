# SPDX-License-Identifier: Apache-2.0
"""All commands, by name."""

from __future__ import annotations

from typing import Annotated

import typer

from dpcohort._version import __version__
from dpcohort.cli import (
    audit,
    bound,
    compare,
    data,
    demo,
    doctor,
    explain,
    figure,
    flower,
    guard,
    ledger,
    new,
    plan,
    receipt,
    report,
    reproduce,
    rules,
    schemes,
    search,
    train,
    verify,
    watch,
    what_if,
)

__all__ = ["app"]

app = typer.Typer(
    name="dpcohort",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Differentially private federated learning in which every client brings its own privacy "
    "budget. Start with [bold]dpcohort demo[/bold] or [bold]dpcohort new[/bold].",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"dpcohort {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Options before the command."""


app.command("new")(new.command)
app.command("plan")(plan.command)
app.command("explain")(explain.command)
app.command("rules")(rules.command)
app.command("schemes")(schemes.command)
app.command("what-if")(what_if.command)
app.command("bound")(bound.command)
app.command("figure")(figure.command)
app.command("train")(train.command)
app.command("watch")(watch.command)
app.command("verify")(verify.command)
app.command("receipt")(receipt.command)
app.command("audit")(audit.command)
app.command("report")(report.command)
app.command("compare")(compare.command)
app.command("reproduce")(reproduce.command)
app.command("search")(search.command)
app.add_typer(data.app, name="data")
app.add_typer(ledger.app, name="ledger")
app.add_typer(guard.app, name="guard")
app.add_typer(flower.app, name="flower")
app.command("doctor")(doctor.command)
app.command("demo")(demo.command)
