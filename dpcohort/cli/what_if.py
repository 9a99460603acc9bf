# SPDX-License-Identifier: Apache-2.0
"""``dpcohort what-if``: sweep one setting and see probabilities and noise change."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from dpcohort._validate import choice
from dpcohort.cli.output import console, print_json, sparkline
from dpcohort.cli.source import ClientsOption, JsonOption, SetOption, SourceArgument, read_config
from dpcohort.config import Config
from dpcohort.errors import InputError
from dpcohort.plain_text import one_line
from dpcohort.runs.configured_plan import configured_population
from dpcohort.what_if import Outcome, Scenario, sweep

__all__ = ["command"]

_WHOLE = {"rounds", "batch_size"}
_WORDS = {"accountant"}
_USUAL = {
    "eta": "0.001:1000:13",
    "bias_cap": "0,0.1,0.2,0.4,0.6,0.8,1",
    "rounds": "10,20,50,100,200,500,1000",
    "batch_size": "8,16,32,64",
    "accountant": "paper,tight",
    "epsilon": "0.1:10:9",
}


def command(
    setting: Annotated[
        str, typer.Argument(help="eta, bias_cap, rounds, batch_size, accountant or epsilon.")
    ],
    source: SourceArgument = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    values: Annotated[
        str | None,
        typer.Option(help="A list 1,2,5 or a range low:high:count spaced by equal ratios."),
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Follow this client; needed to sweep epsilon.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Try several values of one setting, without drawing a schedule or training."""
    scenario = _scenario(read_config(source, clients, changes))
    choice("setting", setting, _USUAL)
    outcomes = sweep(scenario, setting, _parsed(setting, values or _USUAL[setting]), client=client)
    if as_json:
        print_json({"setting": setting, "outcomes": [o.to_dict() for o in outcomes]})
    else:
        _print_table(setting, outcomes, client)


def _scenario(config: Config) -> Scenario:
    if config.is_adaptive:
        raise InputError.because(
            f"the rule {config.rule} chooses each cohort during the training, so there are no "
            "probabilities to try settings on. dpcohort plan CONFIG --set KEY=VALUE shows its caps "
            "and noise."
        )
    return Scenario(
        population=configured_population(config),
        training=config.training,
        rule=config.rule,
        rule_settings=dict(config.rule_settings),
        contract=config.contract,
        noise_model=config.noise_model,
    )


def _parsed(setting: str, text: str) -> list[float | str]:
    if setting in _WORDS:
        return [word.strip() for word in text.split(",")]
    try:
        parts = [float(part) for part in text.replace(":", ",").split(",")]
    except ValueError:
        parts = []
    if not parts or (":" in text and len(parts) != 3):
        raise InputError(
            "values", given=text, allowed="numbers as 1,2,5 or a range as low:high:count"
        )
    if ":" not in text:
        return list(parts)
    spaced = _geometric(*parts)
    return [round(x) for x in spaced] if setting in _WHOLE else list(spaced)


def _geometric(low: float, high: float, count: float) -> list[float]:
    if not (0 < low <= high < math.inf and count in range(2, 1001)):
        raise InputError(
            "values",
            given=f"{low:g}:{high:g}:{count:g}",
            allowed="a range with 0 < low <= high and 2 to 1000 values",
        )
    return [low * (high / low) ** (i / (count - 1)) for i in range(int(count))]


def _print_table(setting: str, outcomes: list[Outcome], client: str | None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (setting, "noise", "moved", "largest p", "smallest p", "out"):
        table.add_column(name, justify="right", no_wrap=True)
    if client is not None:
        table.add_column(Text(f"p of {one_line(client)}"), justify="right", overflow="fold")
    table.add_column("", no_wrap=True)
    worst = max(outcome.noise_to_clip for outcome in outcomes)
    for outcome in outcomes:
        row = [
            outcome.value if isinstance(outcome.value, str) else f"{outcome.value:.4g}",
            f"{outcome.noise_to_clip:.4g} C",
            f"{outcome.bias / 2:.1%}",
            f"{outcome.largest:.4f}",
            f"{outcome.smallest:.2g}",
            str(outcome.excluded),
        ]
        if outcome.client_probability is not None:
            row.append(f"{outcome.client_probability:.4f}")
        bar = round(12 * outcome.noise_to_clip / worst) if worst > 0 else 0
        table.add_row(*row, "█" * max(bar, 1))
    console.print(table)
    lines = {
        "noise": [outcome.noise_to_clip for outcome in outcomes],
        "moved": [outcome.bias for outcome in outcomes],
    }
    if client is not None:
        lines[client] = [outcome.client_probability or 0.0 for outcome in outcomes]
    width = max(len(name) for name in lines)
    for name, values in lines.items():
        console.print(f"{name:<{width}}  {sparkline(values)}", markup=False)
    console.print(
        "noise: on a round's mean gradient, in units of the clip C; moved: share of the draws that "
        "go to other clients than by size; out: clients of probability 0."
    )
