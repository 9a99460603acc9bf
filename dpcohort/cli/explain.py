# SPDX-License-Identifier: Apache-2.0
"""``dpcohort explain``: one client's place in a plan, in words and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcohort.cli.output import console, print_json, print_progress
from dpcohort.cli.source import (
    ClientsOption,
    JsonOption,
    SetOption,
    any_plan_from,
    is_run_place,
    read_config,
)
from dpcohort.errors import InputError
from dpcohort.explain import ClientExplanation, explain_client
from dpcohort.report.adaptive_summary import explain_adaptive_client
from dpcohort.runs.configured_plan import configured_any_plan
from dpcohort.runs.folder import RunFolder
from dpcohort.selection.rules import rule_from_settings

__all__ = ["command"]


def command(
    client: Annotated[str, typer.Argument(help="Id of the client.")],
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SOURCE]",
            help="A config (.toml), a list of clients (.csv), a saved plan (.json) or a run.",
            show_default=False,
        ),
    ] = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The larger budget to try; twice its own if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a client has its probability and noise, and what would change them."""
    if source is not None and is_run_place(source):
        source = RunFolder.find(source).plan
    explanation = _explained(client, source, clients, changes, epsilon)
    if as_json:
        print_json(explanation.to_dict())
    else:
        console.print(explanation.text(), markup=False)


def _explained(
    client: str,
    source: Path | None,
    clients: Path | None,
    changes: list[str] | None,
    epsilon: float | None,
) -> ClientExplanation:
    rule = None
    if source is not None and source.suffix.lower() == ".json":
        plan = any_plan_from(source, clients, changes)
    else:
        config = read_config(source, clients, changes)
        plan = configured_any_plan(config, progress=print_progress)
        if not config.is_adaptive:  # a plan forgets where a rule of one's own came from
            rule = rule_from_settings(config.rule, **config.rule_settings)
    if plan.adaptive is None:
        return explain_client(plan, client, larger_epsilon=epsilon, rule=rule)
    if epsilon is not None:
        raise InputError.because(
            f"--epsilon asks for another probability, and {plan.selection.rule} has none before "
            "the training: it chooses each cohort then."
        )
    return explain_adaptive_client(plan, client)
