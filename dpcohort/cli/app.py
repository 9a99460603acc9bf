# SPDX-License-Identifier: Apache-2.0
"""All commands, by name; the module of a command is imported when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, NamedTuple

import click
import typer
from click.shell_completion import CompletionItem
from typer.core import TyperCommand, TyperGroup

from dpcohort._version import __version__

__all__ = ["COMMANDS", "Command", "app"]


class Command(NamedTuple):
    """Where a command is, and what ``dpcohort --help`` says about it without loading it.

    Attributes:
        module: in this package; it has the function ``command``, or ``app`` for a group.
        summary: the first line of the command's own help.
    """

    module: str
    summary: str


#: In the order of ``dpcohort --help``.
COMMANDS = {
    "new": Command("new", "Write a commented config to start from."),
    "plan": Command("plan", "Select, schedule, calibrate and certify; nothing is trained."),
    "explain": Command(
        "explain", "Say why a client has its probability and noise, and what would change them."
    ),
    "rules": Command(
        "rules", "List all rules: what each needs, what it leaks, where it comes from."
    ),
    "schemes": Command(
        "schemes",
        "List privacy schemes with their units, or train them on the same data and budgets.",
    ),
    "what-if": Command(
        "what_if", "Try several values of one setting, without drawing a schedule or training."
    ),
    "bound": Command(
        "bound", "Show every term of Theorems 1 and 2, the best T, and when a bound says nothing."
    ),
    "figure": Command(
        "figure",
        "Draw a figure, one style for all, safe for the colour-blind, text kept as text in PDFs.",
    ),
    "train": Command(
        "train", "Train; the ledger is written before every round, so a crash never hides spending."
    ),
    "watch": Command(
        "watch",
        "Watch a run; it ends with the run, or with Ctrl-C, and never touches the run's files.",
    ),
    "verify": Command(
        "verify", "Replay every receipt from the ledger with the independent accountant."
    ),
    "receipt": Command(
        "receipt", "Show a client's receipt, counted from the ledger and certified anew."
    ),
    "audit": Command(
        "audit", "Test from outside what a training claims; exit code 1 if a claim is refuted."
    ),
    "report": Command(
        "report", "Write one self-contained page: charts, privacy table, and a what-if explorer."
    ),
    "compare": Command(
        "compare",
        "Compare test accuracy over the same seeds: runs, settings or rules; say what it means.",
    ),
    "reproduce": Command(
        "reproduce", "Train every cell of a table or figure, and set it beside the paper's numbers."
    ),
    "search": Command(
        "search", "Try every setting of a grid on a validation split of the training records."
    ),
    "doctor": Command("doctor", "Show what is installed, what is missing and how to get it."),
    "demo": Command(
        "demo",
        "Plan for 20 clients with budgets of their own, train on the digits, compare four ways.",
    ),
    "data": Command("data", "List, check and fetch data sets."),
    "ledger": Command(
        "ledger", "A client's own ledger over all runs: caps, accepted terms, what was spent."
    ),
    "guard": Command(
        "guard",
        "Hold a client's data and answer a server within the owner's terms, and no further.",
    ),
    "flower": Command(
        "flower",
        "Execute a plan with real clients over Flower, where no server can overspend a client.",
    ),
}


class _Group(TyperGroup):
    """Loads the one command that is run; lists all of them from the table."""

    def __init__(self, **settings: Any) -> None:
        listed = {name: TyperCommand(name, help=one.summary) for name, one in COMMANDS.items()}
        super().__init__(**{**settings, "commands": listed})
        self._listing = TyperGroup(**{**settings, "commands": listed})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, from its module."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"dpcohort.cli.{COMMANDS[cmd_name].module}")
        holder = typer.Typer(rich_markup_mode="rich", add_completion=False)
        holder.callback()(_options)  # a group, although it has but one command
        if hasattr(module, "app"):
            holder.add_typer(module.app, name=cmd_name)
        else:
            holder.command(cmd_name)(module.command)
        group = typer.main.get_command(holder)
        assert isinstance(group, TyperGroup)
        return group.commands[cmd_name]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, and the commands with what the table says about them."""
        self._listing.format_help(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a shell may put there, with what the table says about it."""
        found = [
            CompletionItem(name, help=command.get_short_help_str())
            for name, command in self.commands.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


app = typer.Typer(
    name="dpcohort",
    cls=_Group,
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
