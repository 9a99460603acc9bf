# SPDX-License-Identifier: Apache-2.0
"""``dpcohort figure``: the paper's selection figure, or the same panels for your clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcohort._validate import FloatArray, choice
from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import ClientsOption, JsonOption, SetOption, SourceArgument, read_config
from dpcohort.config import Config, commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.plan import selection_problem
from dpcohort.report.selection_figure import save_selection_figure
from dpcohort.runs.configured_plan import configured_population
from dpcohort.selection.rules import rule_from_settings

__all__ = ["command"]


def command(
    name: Annotated[str, typer.Argument(help="Which figure: selection.")] = "selection",
    source: SourceArgument = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    eta: Annotated[
        str, typer.Option(help="Weights of the noise, one panel each: numbers or auto.")
    ] = "0.1,10",
    out: Annotated[Path, typer.Option("--out", "-o", help=".png, .pdf or .svg")] = Path(
        "selection.png"
    ),
    as_json: JsonOption = False,
) -> None:
    """Draw size x epsilon coloured by probability, a panel for each eta and one for unbiased.

    Without a source: the paper's setting, 100 clients, r = 0.1, its noise formula.
    """
    choice("figure", name, ["selection"])
    paper = source is None and clients is None
    config = paper_figure_config() if paper else read_config(source, clients, changes)
    if paper and changes:
        config = config.with_overrides(changes)
    panels = _panels(config, [_eta(word) for word in eta.split(",")])
    population = configured_population(config)
    save_selection_figure(population, panels, out)
    if as_json:
        print_json({"out": str(out), "panels": {t: p.tolist() for t, p in panels.items()}})
    else:
        console.print(f"Wrote {out}: {', '.join(panels)}", markup=False)


def paper_figure_config() -> Config:
    """The setting of the paper's selection figure: its MNIST clients at r = 0.1.

    Example:
        >>> len(paper_figure_config().population())
        100
    """
    return loads_config(commented_config("paper-figure"))


def _eta(word: str) -> float | str:
    if word.strip() == "auto":
        return "auto"
    try:
        return float(word)
    except ValueError:
        raise InputError("eta", given=word, allowed="a number or auto") from None


def _panels(config: Config, etas: list[float | str]) -> dict[str, FloatArray]:
    population = configured_population(config)
    problem, _ = selection_problem(
        population, config.training, contract=config.contract, noise_model=config.noise_model
    )
    panels = {}
    for eta in etas:
        chosen = rule_from_settings("privacy-aware", eta=eta).select(problem)
        panels[f"privacy-aware, η = {chosen.eta:g}"] = chosen.probabilities
    panels["unbiased"] = population.unbiased
    return panels
