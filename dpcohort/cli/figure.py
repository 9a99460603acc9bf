# SPDX-License-Identifier: Apache-2.0
"""``dpcohort figure``: figures for papers, from runs, plans, configs or the paper's setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpcohort._validate import FloatArray, IntArray, choice, nearest
from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import (
    ClientsOption,
    JsonOption,
    SetOption,
    any_plan_from,
    is_run_place,
    read_config,
)
from dpcohort.config import Config, commented_config, loads_config
from dpcohort.errors import DataMissingError, InputError
from dpcohort.limits import LARGEST_RESULT, read_bounded
from dpcohort.plan import Plan, selection_problem
from dpcohort.report.selection_figure import picture_format, save_selection_figure
from dpcohort.runs.configured_plan import configured_population
from dpcohort.runs.folder import no_run
from dpcohort.selection.rules import rule_from_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpcohort.runs.run import Run

__all__ = ["command"]

NAMES = ("selection", "accuracy", "noise", "participation", "budgets", "cells")
_RESULTS = (Path("reproduced"), Path("results"))  # where results of recipes lie
_OF_RUNS = ("accuracy", "budgets")


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]... [NAME]",
            help="Run folders (or folders of runs, one a seed), a plan, a config, a list of "
            "clients, a recipe or its result; then which figure: "
            f"{', '.join(NAMES)}. A run alone is its accuracy, a result its cells.",
            show_default=False,
        ),
    ] = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    eta: Annotated[
        str, typer.Option(help="selection: weights of the noise, one panel each; numbers or auto.")
    ] = "0.1,10",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help=".png, .pdf or .svg; NAME.png if not given."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a figure, one style for all, safe for the colour-blind, text kept as text in PDFs.

    selection: size x epsilon coloured by probability, a panel for each eta and one for unbiased;
    without a source the paper's setting (100 clients, r = 0.1, its noise formula). Of a run whose
    rule chose the cohorts on the way: by share of draws.
    accuracy: over the rounds, with confidence bands where there are several seeds.
    noise: of every client, deployed and by the paper's formula.
    participation: share of draws over share of records, by budget.
    budgets: promised and certified epsilon of every client of a run.
    cells: of a result of dpcohort reproduce, beside the paper's numbers.
    """
    name, sources = _name_and_sources(list(words or []))
    place = Path(f"{name}.png") if out is None else out
    picture_format(place)
    if name == "selection" and not any(_is_made(source) for source in sources):
        told = _selection(sources, clients, changes, eta, place)
    else:
        if clients is not None or changes:
            raise InputError.because(
                f"--clients and --set belong to a config; figure {name!r} draws what was planned "
                "or trained."
            )
        told = _drawn(name, sources, place)
    if as_json:
        print_json({"out": str(place), "figure": name, **told})
    else:
        drawn = f"{len(_titles(told))} cells" if name == "cells" else ", ".join(_titles(told))
        console.print(f"Wrote {place}: {drawn}", markup=False)


def paper_figure_config() -> Config:
    """The setting of the paper's selection figure: its MNIST clients at r = 0.1.

    Example:
        >>> len(paper_figure_config().population())
        100
    """
    return loads_config(commented_config("paper-figure"))


def _name_and_sources(words: list[str]) -> tuple[str, list[Path]]:
    """The one word that names a figure; every other one must be there to be read."""
    named = [word for word in words if word in NAMES and not Path(word).exists()]
    others = [_place(word) for word in words if word not in named]
    if len(named) > 1:
        raise InputError("figure", given=" ".join(named), allowed="one name at a time")
    for place in (place for place in others if not place.exists()):
        if not is_run_place(place):
            raise InputError.because(f"{place} does not exist, so there is nothing to draw.")
        if not named and nearest(str(place), NAMES):
            choice("figure", str(place), NAMES)  # a name that is misspelt
        raise no_run(place)
    if named:
        return named[0], others
    if any(_is_result(place) for place in others):
        return "cells", others
    return ("accuracy" if any(place.is_dir() for place in others) else "selection"), others


def _place(word: str) -> Path:
    """Where a source lies; the name of a recipe stands for its result.

    Raises:
        DataMissingError: the recipe was not run here.
    """
    from dpcohort.lab.recipes.reading import recipe_names

    if Path(word).exists() or word not in recipe_names():
        return Path(word)
    for folder in _RESULTS:
        if (folder / f"{word}.json").exists():
            return folder / f"{word}.json"
    raise DataMissingError(
        f"there is no result of the recipe {word!r} here. Make one with: dpcohort reproduce {word}"
    )


def _is_result(place: Path) -> bool:
    """A result of ``dpcohort reproduce``, by what it calls itself."""
    if place.suffix.lower() != ".json" or not place.is_file():
        return False
    return b'"dpcohort reproduction"' in read_bounded(place, LARGEST_RESULT)


def _is_made(place: Path) -> bool:
    """A run or a plan: what there is to draw is in it."""
    return place.is_dir() or place.suffix.lower() == ".json"


def _selection(
    sources: list[Path],
    clients: Path | None,
    changes: list[str] | None,
    eta: str,
    out: Path,
) -> dict[str, object]:
    if len(sources) > 1:
        raise InputError("source", given=[str(s) for s in sources], allowed="one config or list")
    source = sources[0] if sources else None
    paper = source is None and clients is None
    config = paper_figure_config() if paper else read_config(source, clients, changes)
    if paper and changes:
        config = config.with_overrides(changes)
    panels = _panels(config, [_eta(word) for word in eta.split(",")])
    save_selection_figure(configured_population(config), panels, out)
    return {"panels": {title: p.tolist() for title, p in panels.items()}}


def _drawn(name: str, sources: list[Path], out: Path) -> dict[str, object]:
    """A figure of runs, or of plans that runs or files hold."""
    from dpcohort.report.figures import save_figure

    if not sources:
        raise InputError.because(
            f"figure {name!r} needs a source. Try: dpcohort figure RUN {name} -o {name}.pdf"
        )
    if name == "cells":
        return _cells(sources, out)
    if name in _OF_RUNS:
        groups = _groups(sources)
        figure = _RUN_FIGURES[name](groups)
        save_figure(figure, out)
        return {"groups": {title: len(runs) for title, runs in groups.items()}}
    drawn = {_title(source): _plan_and_draws(source) for source in sources}
    save_figure(_PLAN_FIGURES[name](drawn), out)
    return {"plans": {title: plan.sha256 for title, (plan, _) in drawn.items()}}


def _cells(sources: list[Path], out: Path) -> dict[str, object]:
    from dpcohort.report.figures import cells_figure, save_figure
    from dpcohort.report.html.reproduction import read_reproduction

    if len(sources) > 1:
        raise InputError("source", given=[str(s) for s in sources], allowed="one result")
    found = read_reproduction(sources[0])
    save_figure(cells_figure(found), out)
    return {"cells": {cell.name: cell.mean for cell in found.cells}}


def _groups(sources: list[Path]) -> dict[str, list[Run]]:
    """The runs of each source; where a folder holds several settings, those are told apart."""
    groups: dict[str, list[Run]] = {}
    for source in sources:
        runs = _runs(source)
        labels = [str(run.settings.get("label", "")) for run in runs]
        for run, label in zip(runs, labels, strict=True):
            title = _title(source) if len(set(labels)) == 1 else label
            groups.setdefault(title, []).append(run)
    return groups


def _title(source: Path) -> str:
    return source.stem if source.is_file() else source.resolve().name


def _runs(source: Path) -> list[Run]:
    from dpcohort.runs.comparison import load_group

    if not source.is_dir():
        raise InputError.because(f"{source} is no run folder; this figure needs a finished run.")
    return load_group(source)


#: A plan, and the draws of each client where there is a run that counted them.
_Drawn = tuple[Plan, IntArray | None]


def _plan_and_draws(source: Path) -> _Drawn:
    if not source.is_dir():
        return any_plan_from(source), None
    run = _runs(source)[0]
    return run.plan, run.ledger.draws


def _accuracy(groups: Mapping[str, list[Run]]) -> Figure:
    from dpcohort.report.figures import accuracy_figure

    return accuracy_figure(groups)


def _budgets(groups: Mapping[str, list[Run]]) -> Figure:
    from dpcohort.report.figures import budgets_figure

    return budgets_figure([r for runs in groups.values() for run in runs for r in run.receipts()])


def _noise(drawn: Mapping[str, _Drawn]) -> Figure:
    from dpcohort.report.figures import noise_figure

    return noise_figure(_one(drawn)[0])


def _participation(drawn: Mapping[str, _Drawn]) -> Figure:
    from dpcohort.report.figures import participation_figure

    counted = {title: draws for title, (_, draws) in drawn.items() if draws is not None}
    return participation_figure({t: plan for t, (plan, _) in drawn.items()}, draws=counted)


def _selection_of_plan(drawn: Mapping[str, _Drawn]) -> Figure:
    """Probabilities; of a run whose cohorts were chosen on the way, shares of the draws."""
    from dpcohort.report.selection_figure import selection_figure

    plan, draws = _one(drawn)
    rule, people = plan.selection.rule, plan.population
    if plan.adaptive is None:
        panels = {rule: plan.selection.probabilities, "unbiased": people.unbiased}
        return selection_figure(people, panels)
    if draws is None:
        raise InputError.because(
            f"{rule} chooses each cohort during the training, so the plan {next(iter(drawn))} has "
            "no probabilities. Draw this figure of the run: it shows who was drawn."
        )
    panels = {f"{rule}, as drawn": draws / max(1, int(draws.sum())), "by size": people.unbiased}
    return selection_figure(people, panels, scale_name="share of draws")


def _one(drawn: Mapping[str, _Drawn]) -> _Drawn:
    if len(drawn) > 1:
        raise InputError("source", given=list(drawn), allowed="one run or plan for this figure")
    return next(iter(drawn.values()))


_RUN_FIGURES: dict[str, Callable[[Mapping[str, list[Run]]], Figure]] = {
    "accuracy": _accuracy,
    "budgets": _budgets,
}
_PLAN_FIGURES: dict[str, Callable[[Mapping[str, _Drawn]], Figure]] = {
    "noise": _noise,
    "participation": _participation,
    "selection": _selection_of_plan,
}


def _titles(told: Mapping[str, object]) -> list[str]:
    found = next(iter(told.values()))
    return list(found) if isinstance(found, Mapping) else []


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
