# SPDX-License-Identifier: Apache-2.0
"""``dpcohort figure``: one picture of what was planned or trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from matplotlib.figure import Figure
from typer import Argument, Option

from dpcohort.cli import (
    ClientsOption,
    JsonOption,
    SetOption,
    console,
    is_run_place,
    plan_from,
    print_json,
    read_config,
)
from dpcohort.config import Config, commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_RESULT, read_bounded
from dpcohort.plan import Plan
from dpcohort.report import (
    accuracy_figure,
    picture_format,
    save_figure,
    save_selection_figure,
    selection_figure,
)
from dpcohort.runs import Run, configured_population, load_group, no_run
from dpcohort_lab import figures
from dpcohort_lab.checks import IntArray, choice, did_you_mean
from dpcohort_lab.figures import panels_at
from dpcohort_lab.recipes.page import read_reproduction

NAMES = ("selection", "accuracy", "noise", "participation", "budgets", "cells")
_RESULTS = (Path("reproduced"), Path("results"))  # where results of recipes lie


def figure(
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[SOURCE]... [NAME]",
            help="Run folders (or folders of runs, one a seed), a plan, a config, a list of "
            "clients, a recipe or its result; then which figure: "
            f"{', '.join(NAMES)}. A run alone is its accuracy, a result its cells.",
        ),
    ] = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    eta: Annotated[
        str, Option(help="selection: weights of the noise, one panel each; numbers or auto.")
    ] = "0.1,10",
    out: Annotated[
        Path | None, Option("--out", "-o", help=".png, .pdf or .svg; NAME.png if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a figure of runs, plans or results, one style for all, text kept as text.

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
    # What there is to draw is in a run or a plan that was made.
    made = any(source.is_dir() or source.suffix.lower() == ".json" for source in sources)
    if name == "selection" and not made:
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
        (titles,) = told.values()
        drawn = f"{len(titles)} cells" if name == "cells" else ", ".join(titles)
        console.print(f"Wrote {place}: {drawn}")


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
        if not named and did_you_mean(str(place), NAMES):
            choice("figure", str(place), NAMES)  # a name that is misspelt
        raise no_run(place)
    if named:
        return named[0], others
    if any(_is_result(place) for place in others):
        return "cells", others
    return ("accuracy" if any(place.is_dir() for place in others) else "selection"), others


def _place(word: str) -> Path:
    """Where a source lies; the name of a recipe stands for its result."""
    places = [Path(word), *(folder / f"{word}.json" for folder in _RESULTS)]
    return next((place for place in places if place.exists()), places[0])


def _is_result(place: Path) -> bool:
    """A result of ``dpcohort reproduce``, by what it calls itself."""
    if place.suffix.lower() != ".json" or not place.is_file():
        return False
    return b'"dpcohort reproduction"' in read_bounded(place, LARGEST_RESULT)


def _selection(
    sources: list[Path], clients: Path | None, changes: list[str] | None, eta: str, out: Path
) -> dict[str, dict[str, Any]]:

    if len(sources) > 1:
        raise InputError("source", given=[str(s) for s in sources], allowed="one config or list")
    source = sources[0] if sources else None
    paper = source is None and clients is None
    config = paper_figure_config() if paper else read_config(source, clients, changes)
    if paper and changes:
        config = config.with_overrides(changes)
    etas, population = [_eta(word) for word in eta.split(",")], configured_population(config)
    panels = panels_at(config, population, etas)
    save_selection_figure(population, panels, out)
    return {"panels": {title: p.tolist() for title, p in panels.items()}}


def _drawn(name: str, sources: list[Path], out: Path) -> dict[str, dict[str, Any]]:
    """A figure of runs, of plans that runs or files hold, or of the cells of a result."""
    if not sources:
        raise InputError.because(
            f"figure {name!r} needs a source. Try: dpcohort figure RUN {name} -o {name}.pdf"
        )
    told: dict[str, dict[str, Any]]
    if name == "cells":
        if len(sources) > 1:
            raise InputError("source", given=[str(s) for s in sources], allowed="one result")
        result = read_reproduction(sources[0])
        drawing = figures.cells_figure(result)
        told = {"cells": {cell["name"]: cell["mean"] for cell in result.cells}}
    elif name in ("accuracy", "budgets"):
        groups = _groups(sources)
        receipts = (r for runs in groups.values() for run in runs for r in run.receipts())
        drawing = (
            accuracy_figure(groups)
            if name == "accuracy"
            else figures.budgets_figure(list(receipts))
        )
        told = {"groups": {title: len(runs) for title, runs in groups.items()}}
    else:
        plans = {_title(source): _plan_and_draws(source) for source in sources}
        drawing = _plan_figure(name, plans)
        told = {"plans": {title: plan.sha256 for title, (plan, _) in plans.items()}}
    save_figure(drawing, out)
    return told


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

    if not source.is_dir():
        raise InputError.because(f"{source} is no run folder; this figure needs a finished run.")
    return load_group(source)


def _plan_and_draws(source: Path) -> tuple[Plan, IntArray | None]:
    """A plan, and the draws of each client where there is a run that counted them."""
    if not source.is_dir():
        return plan_from(source), None
    run = _runs(source)[0]
    return run.plan, run.ledger.draws


def _plan_figure(name: str, plans: Mapping[str, tuple[Plan, IntArray | None]]) -> Figure:

    if name == "participation":
        counted = {title: draws for title, (_, draws) in plans.items() if draws is not None}
        only = {title: plan for title, (plan, _) in plans.items()}
        return figures.participation_figure(only, draws=counted)
    if len(plans) > 1:
        raise InputError("source", given=list(plans), allowed="one run or plan for this figure")
    ((title, (plan, draws)),) = plans.items()
    if name == "noise":
        return figures.noise_figure(plan)
    people = plan.population
    panels, scale_name = plan.participation.shares(draws, people.unbiased, title)
    return selection_figure(people, panels, scale_name=scale_name)


def _eta(word: str) -> float | str:
    if word.strip() == "auto":
        return "auto"
    try:
        return float(word)
    except ValueError:
        raise InputError("eta", given=word, allowed="a number or auto") from None
