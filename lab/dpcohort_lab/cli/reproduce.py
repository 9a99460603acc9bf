# SPDX-License-Identifier: Apache-2.0
"""``dpcohort reproduce``: the paper's tables and figures, and what goes beyond them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from dpcohort.cli import (
    BackendOption,
    DataDirOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    console,
    data_changes,
    new_table,
    print_json,
    print_note,
    say,
    show_messages,
    showing_progress,
)
from dpcohort.errors import DataMissingError, InputError
from dpcohort_lab.recipes.reading import load_recipe, recipe_names
from dpcohort_lab.recipes.recipe import Form, Recipe

if TYPE_CHECKING:
    from rich.table import Table

    from dpcohort_lab.recipes.judgement import RecipeResult


def reproduce(
    name: Annotated[
        str | None, Argument(metavar="NAME|all", help="A recipe, a recipe's file (.toml), or all.")
    ] = None,
    show_list: Annotated[bool, Option("--list", help="Show the recipes.")] = False,
    quick: Annotated[
        bool, Option("--quick", help="A reduced version: minutes on two cores.")
    ] = False,
    smallest: Annotated[
        bool, Option("--smallest", help="Two rounds on embedded digits: does it run?")
    ] = False,
    seeds: Annotated[
        int | None, Option(min=1, help="Repetitions; the recipe's if not given.")
    ] = None,
    device: DeviceOption = None,
    out: Annotated[
        Path, Option("--out", "-o", help="Where results, figures and finished cells go.")
    ] = Path("reproduced"),
    data_dir: DataDirOption = None,
    jobs: JobsOption = 1,
    backend: BackendOption = "",
    as_json: JsonOption = False,
) -> None:
    """Train every cell of a table or figure, and set it beside the paper's numbers.

    A stopped command goes on where it was when it is given again.
    """
    if show_list:
        _print_list(as_json)
        return
    if name is None:
        raise InputError.because(
            "nothing to reproduce: give a recipe's name, or all; dpcohort reproduce --list shows "
            "the recipes."
        )
    if quick and smallest:
        raise InputError.because("--quick and --smallest are two forms; give one.")
    form: Form = "quick" if quick else "smallest" if smallest else "full"
    changes = data_changes(None, data_dir)
    try:
        _reproduce_all(name, form, seeds, changes, out, (device, jobs, backend), as_json=as_json)
    except KeyboardInterrupt:
        print_note("the same command goes on where it was.")
        raise


def _reproduce_all(
    name: str,
    form: Form,
    seeds: int | None,
    changes: list[str],
    out: Path,
    where: tuple[str | None, int, str],
    *,
    as_json: bool,
) -> None:
    # All are read, and so checked, before the first is trained.
    recipes = [load_recipe(n) for n in (recipe_names() if name == "all" else [name])]
    results: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for recipe in recipes:
        chosen = recipe.in_form(form, seeds=seeds, changes=changes)
        try:
            results.append(_reproduce(chosen, out, where, quiet=as_json))
        except DataMissingError as error:
            if name != "all":
                raise
            missing[recipe.name] = str(error)
    if as_json:
        print_json(results if name == "all" else results[0])
    if missing:
        raise DataMissingError(_missing(missing, len(recipes)))


def _missing(missing: dict[str, str], recipes: int) -> str:
    """Which recipes of all lack their data, and once for each set how to get it."""
    reasons = {reason: [n for n in missing if missing[n] == reason] for reason in missing.values()}
    told = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    done = recipes - len(missing)
    return "\n\n".join([f"{done} of {recipes} recipes are done; the others lack data.", *told])


def _reproduce(
    recipe: Recipe, out: Path, where: tuple[str | None, int, str], *, quiet: bool
) -> dict[str, Any]:
    from dpcohort_lab.recipes.judgement import write_result

    show_messages()
    result, environment = _result(recipe, out, where, quiet=quiet)
    path, values = write_result(result, out, environment)
    pictures = _draw(recipe, values, out, path.stem)
    if not quiet:
        _print(result)
        shown = ", ".join(str(p) for p in [path, *pictures])
        say(f"Wrote {shown}")
    return values


def _result(
    recipe: Recipe, out: Path, where: tuple[str | None, int, str], *, quiet: bool
) -> tuple[RecipeResult, dict[str, Any]]:
    if recipe.header.figure == "selection":
        from dpcohort_lab.recipes.judgement import judge_panels, selection_panels

        return judge_panels(recipe, *selection_panels(recipe)), {}
    from dpcohort.runs import Workers, environment, resolve_device
    from dpcohort_lab.recipes.execution import measure
    from dpcohort_lab.recipes.judgement import judge

    device, jobs, backend = where
    workers = Workers(jobs, backend)
    place = resolve_device(device or recipe.base.run.device)
    ending = "" if recipe.form == "full" else f".{recipe.form}"
    folder = out / "cells" / f"{recipe.name}{ending}"
    with showing_progress(recipe.header.title, quiet=quiet) as progress:
        store = measure(recipe, folder=folder, device=place, workers=workers, progress=progress)
    return judge(recipe, store), environment(place)


def _draw(recipe: Recipe, values: dict[str, Any], out: Path, stem: str) -> list[Path]:
    if recipe.header.figure != "selection":
        from dpcohort_lab.recipes.figures import save_result_figure

        header = recipe.header
        return save_result_figure(values, out, stem, kind=header.figure, across=header.across)
    from dpcohort.report import save_selection_figure
    from dpcohort_lab.recipes.judgement import selection_panels

    population, panels = selection_panels(recipe)
    paths = [out / f"{stem}.png", out / f"{stem}.pdf"]
    for path in paths:
        save_selection_figure(population, panels, path)
    return paths


def _print(result: RecipeResult) -> None:
    from dpcohort_lab.recipes.judgement import REDUCED, result_note

    recipe = result.recipe
    console.print(f"{recipe.header.title} ({recipe.header.of})", style="bold")
    warning = REDUCED[recipe.form]
    if warning:
        console.print(warning, style="bold yellow")
    if result.cells:
        console.print(_table(result))
    for panel in result.extra.get("panels", ()):
        console.print(
            f"{panel['panel']}: distance to unbiased {panel['distance_to_unbiased']:.2f}, "
            f"probabilities {panel['smallest']:g} to {panel['largest']:g}"
        )
    for finding in result.findings:
        word = {True: "yes", False: "NO", None: "-"}[finding["holds"]]
        say(f"{word:>3}  {finding['text']} ({finding['detail']})")
    if result.cells:
        kept = "every receipt certifies" if result.promises_hold else "NOT EVERY RECEIPT CERTIFIES"
        raw = any(found.cell.adaptive == "biased-raw" for found in result.cells)
        limit = ", for the training steps alone where raw losses were seen (NOT PRIVATE)" * raw
        words = f"Budgets: {kept} at the client's declared budget{limit}."
        say(words)
        say(result_note(recipe))
    if warning:
        console.print(warning, style="bold yellow")


def _table(result: RecipeResult) -> Table:
    from rich.text import Text

    judged = any(found.cell.paper is not None or found.verdict for found in result.cells)
    ours = "ours (mean ± 95 % CI)"
    table = new_table(
        "cell", numbers=("paper", ours, "difference") if judged else (ours,), overflow="fold"
    )
    if judged:
        table.add_column("verdict", overflow="fold")
    for found in result.cells:
        accuracy, paper = found.accuracy, found.cell.paper
        spread = f" ± {accuracy.half_width:.2f}" if accuracy.count > 1 else " (one seed)"
        cells = [f"{accuracy.mean:.2f}{spread}"]
        if judged:
            difference = "-" if found.difference is None else f"{found.difference:+.2f}"
            cells = ["-" if paper is None else f"{paper:.2f}", *cells, difference, found.verdict]
        table.add_row(Text(found.cell.label), *cells)
    return table


def _print_list(as_json: bool) -> None:
    recipes = [load_recipe(name) for name in recipe_names()]
    listed = [
        {
            "name": recipe.name,
            "title": recipe.header.title,
            "of": recipe.header.of,
            "cells": len(recipe.cells),
            "seeds": recipe.seeds,
        }
        for recipe in recipes
    ]
    if as_json:
        print_json(listed)
        return
    width = max(len(recipe.name) for recipe in recipes)
    for row in listed:
        size = f"{row['cells']} cells x {row['seeds']} seeds" if row["cells"] else "no training"
        say(f"{row['name']:<{width}}  {row['of']}: {row['title']} ({size})")
