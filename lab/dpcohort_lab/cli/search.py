# SPDX-License-Identifier: Apache-2.0
"""``dpcohort search``: settings the paper leaves out, tried on held-out training records."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dpcohort.cli import (
    BackendOption,
    DataDirOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    SetOption,
    console,
    data_changes,
    print_json,
    say,
    showing_progress,
)
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_CONFIG
from dpcohort.text_files import read_utf8
from dpcohort_lab.recipes import load_recipe, recipe_names
from dpcohort_lab.recipes.recipe import Cell

_SHOWN = 10


def search(
    source: Annotated[
        str, Argument(metavar="RECIPE|CONFIG", help="A recipe, or a config with a grid.")
    ],
    changes: SetOption = None,
    seeds: Annotated[int | None, Option(min=1, help="Repetitions of each setting.")] = None,
    held_out: Annotated[
        float | None, Option(help="Share of a config's records to hold out, 0.1 if not given.")
    ] = None,
    baseline: Annotated[
        bool, Option("--baseline", help="The recipe's search for its baselines.")
    ] = False,
    at: Annotated[
        list[str] | None,
        Option(
            metavar="AXIS=VALUE",
            help="Score at another value of a recipe's axis, e.g. --at B=32, or another mechanism, "
            "--at mechanism=NAME; may be repeated.",
        ),
    ] = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="search-NAME[-baseline][-AXIS-VALUE].json if not given."),
    ] = None,
    data_dir: DataDirOption = None,
    jobs: JobsOption = 1,
    backend: BackendOption = "",
    as_json: JsonOption = False,
) -> None:
    """Try every setting of a grid on a validation split of the training records.

    The test set is never looked at. Nothing is charged to the clients' budgets, as in the paper.
    """
    from dpcohort.runs import Workers

    workers = Workers(jobs, backend)
    overrides = data_changes(changes, data_dir)
    for text in at or []:
        if "=" not in text:
            raise InputError("--at", given=text, allowed="AXIS=VALUE, such as s=30")
    places = dict(text.split("=", 1) for text in at or [])
    from dpcohort_lab.recipes.search import (
        UNCHARGED,
        recipe_search,
        run_search,
        searched_cells,
        section_settings,
        write_search,
    )

    is_recipe = (
        source in recipe_names()
        or not source.endswith(".toml")
        or (b"[recipe]" in read_utf8(source, at_most_bytes=LARGEST_CONFIG))
    )
    if not is_recipe:
        if baseline or at:
            flag = "--baseline" if baseline else "--at"
            raise InputError.because(f"{flag} goes with a recipe; a config has one grid only.")
        name, cells, settings = _of_config(Path(source), overrides)
        section_seeds, share = 2, 0.1 if held_out is None else held_out
    else:
        if held_out is not None:
            raise InputError.because(
                "--held-out goes with a config; a recipe has its own share, recipe.search.held_out."
            )
        recipe = load_recipe(source).in_form("full", changes=overrides)
        section = recipe_search(recipe, baseline=baseline)
        name, settings = recipe.name, section_settings(section)
        cells = searched_cells(recipe, section, places)
        section_seeds, share = section.seeds, section.held_out
    # What of the command line decides what is tried, for the file to tell.
    options = ["--baseline"] if baseline else []
    options += [f"--at {shlex.quote(f'{axis}={value}')}" for axis, value in places.items()]
    options += [f"--set {shlex.quote(change)}" for change in changes or []]
    with showing_progress(f"search {name}", quiet=as_json) as progress:
        result = run_search(
            name,
            cells,
            settings,
            seeds=section_seeds if seeds is None else seeds,
            share=share,
            device=device,
            workers=workers,
            progress=progress,
            options=tuple(options),
            source=shlex.quote(Path(source).name) if source.endswith(".toml") else "",
        )
    parts = [name, *(["baseline"] if baseline else []), *(f"{a}-{v}" for a, v in places.items())]
    path = out or Path(f"search-{'-'.join(parts)}.json".replace(" ", "-"))
    write_search(result, path)
    if as_json:
        print_json(result.to_dict())
        return
    best, metric = sorted(result.tried, key=lambda tried: tried.rank), result.chosen.metric
    if metric.name != "accuracy":
        say(f"Judged by {metric.words}, {'more' if metric.higher_is_better else 'less'} is better:")
    for tried in best[:_SHOWN]:
        score = f"{tried.mean:6.2f} %" if metric.is_share else f"{tried.mean:8.4g}"
        console.print(f"{'diverged' if tried.diverged else score}  {' '.join(tried.settings)}")
    if len(best) > _SHOWN:
        console.print(f"and {len(best) - _SHOWN} more, all in {path}")
    say(f"Chosen: {' '.join(result.chosen.settings)}")
    say(UNCHARGED)
    say(f"Wrote {path}")


def _of_config(path: Path, overrides: list[str]) -> tuple[str, list[Cell], list[tuple[str, ...]]]:
    from dpcohort.config import load_config
    from dpcohort.runs import data_section
    from dpcohort_lab.recipes.search import search_grid

    config = load_config(path).with_overrides(overrides)
    data_section(config)
    if not config.grid:
        raise InputError.because(
            f"{path} has no [grid], which says what to try, for example: [grid] "
            "optimiser = { learning_rate = [0.1, 0.3] }"
        )
    cell = Cell(mechanism=path.stem, axes={}, config=config)
    return path.stem, [cell], search_grid(config.grid)
