# SPDX-License-Identifier: Apache-2.0
"""``dpcohort explain``: one client's place in a plan, in words and numbers."""

from __future__ import annotations

from typing import Annotated

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import ClientsOption, JsonOption, SetOption, SourceArgument, plan_from
from dpcohort.explain import explain_client

__all__ = ["command"]


def command(
    client: Annotated[str, typer.Argument(help="Id of the client.")],
    source: SourceArgument = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The larger budget to try; twice its own if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a client has its probability and noise, and what would change them."""
    plan = plan_from(source, clients, changes)
    explanation = explain_client(plan, client, larger_epsilon=epsilon)
    if as_json:
        print_json(explanation.to_dict())
    else:
        console.print(explanation.text(), markup=False)
