# SPDX-License-Identifier: Apache-2.0
"""``dpcohort new`` and ``doctor``: a config to start from, and what is installed."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.text import Text
from typer import Argument, Option

from dpcohort._validate import choice, did_you_mean
from dpcohort._version import __version__
from dpcohort.cli._sources import say_never_drawn
from dpcohort.cli._terminal import (
    JsonOption,
    console,
    new_table,
    print_json,
    program,
    say,
    write_new,
)
from dpcohort.config import (
    EXAMPLES,
    Config,
    commented_config,
    loads_config,
    table_config,
)
from dpcohort.config._settings import rewritten
from dpcohort.data import (
    PersonTerms,
    describe_datasets,
    read_table,
)
from dpcohort.data._column_names import alike, known_by_name
from dpcohort.data._persons import looks_like_person
from dpcohort.data._tables import (
    client_names,
    is_missing_cell,
    kind_of,
    numbers_of,
    values_of,
)
from dpcohort.errors import DpcohortError, InputError
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan
from dpcohort.runs import configured_data, configured_population, configured_training
from dpcohort.runs._configured import configured_plan
from dpcohort.runs._folder import installed_version
from dpcohort.tasks import LOSSES
from dpcohort.text_files import is_table
from dpcohort.tuning import Settings, changes_for, suggested_settings
from dpcohort.tuning._settings import linear_width, within_bounds


def new(
    path: Annotated[Path, Argument(help="Where to write it; - for the terminal.")] = Path(
        "dpcohort.toml"
    ),
    example: Annotated[
        str,
        Option(
            "--from",
            metavar="EXAMPLE|TABLE",
            help=f"Which example: {', '.join(EXAMPLES)}; or a table of yours (.csv, .parquet).",
        ),
    ] = "hospitals",
    label: Annotated[
        list[str] | None, Option(help="Column of the table to be predicted; again for more.")
    ] = None,
    client: Annotated[
        str | None, Option(help="Column of the table that says whose record it is.")
    ] = None,
    person: Annotated[
        str | None, Option(help="Column of the table that says of which person a row is.")
    ] = None,
    clients: Annotated[
        Path, Option(help="The list of clients (CSV: id,epsilon,delta) that goes with the table.")
    ] = Path("clients.csv"),
    task: Annotated[
        str | None, Option(help="classification, multi-label, regression or counts.")
    ] = None,
    category: Annotated[
        list[str] | None, Option(help="Column of the table that holds no number; again for more.")
    ] = None,
    leave_out: Annotated[
        list[str] | None, Option(help="Column that the model does not see; again for more.")
    ] = None,
    public: Annotated[
        bool,
        Option("--public", help="The table is public: propose kinds, bounds and values from it."),
    ] = False,
    force: Annotated[bool, Option("--force", help="Replace a file that exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented config: an example, or for a table of yours."""
    if is_table(example):
        source = Path(example)
        kind: Any = {"task": task, "public": public, "person": person}
        kind |= {"category": category or [], "leave_out": leave_out or []}
        text, plan, steps = _for_table(source, path, label or [], client, clients, **kind)
        if write_new(path, text, force=force, as_json=as_json, example=str(source)):
            say(f"Wrote {path} for {one_line(str(source))}.")
            if plan is not None:
                say_never_drawn(plan)
            say("Next:")
            for step in steps:
                say(f"  - {step}")
        return
    if label or client or person or task or public or category or leave_out:
        raise InputError(
            "--from",
            given=example,
            allowed="a table (.csv, .parquet), to go with --label, --client, --person, --task, "
            "--category, --leave-out and --public",
        )
    text = _with_suggestions(example)
    if not write_new(path, text, force=force, as_json=as_json, example=example):
        return
    has_data = "\n[data]" in text
    following = f"train {path} --out RUN" if has_data else f"plan {path}"
    say(f"Wrote {path}. Look at it, change it, then: {program()} {following}")


def _with_suggestions(example: str) -> str:
    """The example with the settings that sizes and budgets suggest; the paper's as the paper."""
    text = commented_config(example)
    if example not in ("digits", "heart-disease", "hospitals"):
        return text

    return rewritten(text, _suggestions(loads_config(text)), notes=_NOTES, tell_old=False)


#: What the file says beside what was suggested.
_NOTES = {"model.options": "Newton steps; without this line plain ones"}


def _suggestions(config: Config) -> list[str]:
    """Changes of a configuration to what the sizes and budgets of its clients suggest."""
    population = configured_population(config)
    dimension = configured_training(config).dimension
    kind = config.task.kind or "classification"
    counted = config.with_overrides([f"training.dimension={dimension}"])
    bounded = "data" in config.values and config.model.name == "logistic"
    settings = suggested_settings(
        population,
        dimension=dimension,
        task=kind,
        row_bound=configured_data(config).row_bound if bounded else math.inf,
        width=linear_width(counted, configured_data(config)) if bounded else 0,
        summed_rows=configured_data(config).summed_rows if bounded else 1,
        config=counted,
    )
    changes = changes_for(settings, counted, population)
    left_out = set() if "dimension" in config.values["training"] else {"training.dimension"}
    return [
        change
        for change in changes
        if change.partition(".")[0] in config.values and change.partition("=")[0] not in left_out
    ]


def _for_table(
    source: Path,
    path: Path,
    label: list[str],
    client: str | None,
    clients: Path,
    *,
    person: str | None,
    task: str | None,
    category: list[str],
    leave_out: list[str],
    public: bool,
) -> tuple[str, Plan | None, list[str]]:
    """The configuration for a table, its plan where it can be made, and what comes next."""
    table = read_table(source)
    listed = ", ".join(one_line(name, 40) for name in table)
    for option, given in (("--label", label), ("--client", client)):
        if not given:
            what = "to be predicted" if option == "--label" else "that says whose record it is"
            raise InputError.because(f"{option} is missing: the column {what}, one of {listed}.")
    for name in (*label, str(client), *([person] if person else []), *category, *leave_out):
        if name not in table:
            step = did_you_mean(name, table)
            raise InputError("column", given=name, allowed=f"one of {listed}", next_step=step)
    kind = choice("--task", task or ("multi-label" if len(label) > 1 else "classification"), LOSSES)
    if (len(label) > 1) != (kind == "multi-label"):
        raise InputError.because("--label is given more than once exactly for --task multi-label.")
    # What cells are like tells of them: of a table that is not public its columns are stated, or
    # known by their names.
    stated = {**dict.fromkeys(category, "text"), **dict.fromkeys(leave_out, "free text")}
    by_name = [one for one in table if looks_like_person(one) and one not in (*label, client)]
    if person is None and len(by_name) == 1:
        person = by_name[0]
    kinds = {}
    for name, cells in table.items():
        if name in (*label, client, person, *by_name):
            continue
        by_its_name = known_by_name(name)[0] or "number"
        is_read = public and by_its_name != "id"
        kinds[name] = stated.get(name) or (kind_of(cells) if is_read else by_its_name)
    features = [name for name, found in kinds.items() if found not in ("free text", "id")]
    by_kind: dict[str, list[str]] = {}
    for name, found in kinds.items():
        if name not in stated and (not public or found == "id"):
            by_kind.setdefault(found, []).append(name)

    names = sorted(set(client_names(str(client), table[str(client)])))

    def proposed(name: str) -> list[Any]:
        """What a column holds, where that may be told."""
        return values_of(table[name]) if public else []

    def ends(name: str, *, beyond: float = 0.0) -> list[Any]:
        """The smallest and the largest number of a column, without this share at each end."""
        values = proposed(name)
        if kinds.get(name) == "date":
            values = [str(one)[:10] for one in values]
            return [values[0], values[-1]] if len(set(values)) > 1 else []
        if len(values) > 2 and beyond:  # of a long tail one number would scale all others away
            numbers, is_missing = numbers_of(name, table[name])
            kept = np.quantile(
                numbers[~is_missing], [beyond, 1 - beyond], method="inverted_cdf"
            ).tolist()
            if kept[0] < kept[1]:
                values = values_of(kept)
        if not values:
            return []
        return [values[0], values[-1] if values[-1] > values[0] else values[0] + 1]

    bounds = {
        name: ends(name, beyond=_BEYOND) if public else known_by_name(name)[1]
        for name in features
        if kinds[name] in ("number", "date")
    }

    def written(folder: Path) -> str:
        """The configuration for a file in this folder."""
        return table_config(
            table=os.path.relpath(source, folder),
            label=label if kind == "multi-label" else label[0],
            client=str(client),
            person=person,
            clients=os.path.relpath(clients, folder),
            kind=kind,
            labels=proposed(label[0]) if kind == "classification" else [],
            features=features,
            bounds=_together(bounds),
            categories={name: proposed(name) for name in features if kinds[name] == "text"},
            target_bounds=ends(label[0]) if kind == "regression" else [],
            left_out=[name for name in kinds if name not in features],
            proposed=[] if public else [name for name, found in bounds.items() if found],
            dates=[name for name in features if kinds[name] == "date"],
            public=public,
            cohort_size=min(10, len(names)),
        )

    text = written(path.parent if path != Path("-") else Path())
    plan, trouble = None, ""
    if clients.exists() and "FILL IN" not in text:
        try:
            here = loads_config(written(Path()))
            suggestions = _suggestions(here)
            plan = configured_plan(here.with_overrides(suggestions))
            text = rewritten(text, suggestions, notes=_NOTES, tell_old=False)
        except DpcohortError as error:
            trouble = str(error)
    rows = 1 if person is None else PersonTerms().rows_per_person
    within = within_bounds(Settings(), math.sqrt(len(features) + 1), kind, rows)
    if plan is None and within is not None:
        rate = within.learning_rate()
        changes = [f"training.clip={within.clip}", f"optimiser.learning_rate={rate}"]
        text = rewritten(text, changes, tell_old=False)
    said = ", ".join(one_line(name, 30) for name in names[:6]) + (" ..." if names[6:] else "")
    steps = []
    if person in by_name:
        steps.append(
            f"the column {one_line(str(person), 40)} by its name says whose a row is, and persons "
            "are protected, with all their rows: take the line person out if that is wrong"
        )
    elif by_name and person is None:
        steps.append(
            f"of {', '.join(one_line(one, 40) for one in by_name)} each by its name says whose a "
            "row is: name the one that does by --person, and persons are protected"
        )
    if not clients.exists():
        steps.append(
            f"write {clients}: the line id,epsilon,delta and below it one for each of the "
            f"{len(names)} clients ({said})"
        )
    if "FILL IN" in text:
        steps.append(
            f"in {path}, fill in what is marked FILL IN from what is known of such data. Do not "
            "look it up in the table: its own smallest and largest values, or those that occur, "
            "tell of single records. (If the table is public: --public proposes them.)"
        )
        steps.append(
            "what a column holds was told by its name alone, and is a number where that says "
            "nothing: say --category COLUMN of one that holds none, --leave-out COLUMN of free text"
        )
        unknown = [name for name in by_kind.get("number", []) if not bounds[name]]
        if unknown:
            steps.append(
                f"where nothing is known of a number, pay for an estimate: {program()} data bounds "
                f"{path} --range {shlex.quote(unknown[0])}=0:1000 --share 0.1 -o bounds.json"
            )
    for found, words in _BY_NAME.items():
        if named := by_kind.get(found):
            steps.append(f"{', '.join(one_line(one, 40) for one in named[:9])}: {words}")
    for name in features if public else ():
        there = [cell for cell in table[name] if not is_missing_cell(cell)]
        if len(values_of(there)) < 2:
            steps.append(f"{one_line(name, 40)} is the same in all rows: leave it out")
        elif len(there) < len(table[name]) / 2:
            empty = f"{1 - len(there) / len(table[name]):.0%} of its cells are empty"
            told = f'{empty}: leave it out, or say missing = "indicator"'
            steps.append(f"{one_line(name, 40)}: {told}")
    if trouble:
        steps.append(f"put right: {trouble}")
    tuned = path.with_stem(f"{path.stem}-tuned")
    steps += [
        f"{program()} tune {path} -o {tuned}",
        f"{program()} train {tuned} --out RUN",
        f"{program()} receipt RUN --letters LETTERS",
    ]
    return text, plan, steps


#: What is done with columns that were known by their names.
_BY_NAME = {
    "date": "by their names dates, which become days; their first and last one are to be filled in",
    "text": "by their names categories, whose values are to be filled in",
    "free text": "by their names free text, and left out: no bounds could hold it",
    "id": "by their names numbers of rows, and left out: a model would learn rows by heart",
}


def _together(bounds: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Bounds of columns, with one line for those that are numbered and have the same."""
    found = dict(bounds)
    for pattern, names in alike(bounds).items():
        first = bounds[names[0]]
        if all(bounds[name] == first for name in names):
            found = {pattern if one == names[0] else one: value for one, value in found.items()}
            found = {one: value for one, value in found.items() if one not in names}
    return found


#: Of a public table, the share of a column's numbers at each end that its bounds leave out.
_BEYOND = 0.01


#: What packages are for, by the extra that asks for them; "" is dpcohort itself.
_PURPOSES = {
    "": {
        "numpy": "everything",
        "scipy": "accounting",
        "dp-accounting": "the second opinion on every promise",
        "pydantic": "reading configs",
        "matplotlib": "pictures",
        "safetensors": "model files",
        "rich": "the terminal",
        "typer": "commands",
    },
    "train": {
        "torch": "training",
        "scikit-learn": "the embedded data set, estimators",
        "joblib": "sweeps in processes and on clusters",
        "cryptography": "private noise, certificates",
        "mpmath": "certified noise",
    },
    "report": {"jinja2": "the HTML report", "plotly": "its charts"},
    "tables": {"pyarrow": "tables in Parquet"},
    "flower": {"flwr": "a federation over Flower"},
    "operate": {"prometheus-client": "metrics of a federation"},
    "export": {"onnx": "models for ONNX", "skops": "models for scikit-learn"},
    "cluster": {"distributed": "cells of a sweep on many machines"},
    "tensorboard": {"tensorboard": "train --tensorboard"},
}
#: Packages of others that are used where they are installed.
_OTHERS = {
    "pandas": "DataFrames of yours as tables",
    "peft": "LoRA in a network of yours",
    "tqdm": "progress bars in notebooks",
}
#: Extras for those who work on dpcohort itself.
_FOR_DEVELOPERS = ("docs", "test")
_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*(?:;.*\bextra == ['\"]([\w-]+)['\"])?")


def _packages() -> list[tuple[str, str, str]]:
    """Every package that dpcohort or one of its extras asks for, its purpose, and how to get it."""
    purposes = [(extra, *one) for extra, some in _PURPOSES.items() for one in some.items()]
    with suppress(importlib.metadata.PackageNotFoundError):  # run from a folder, not installed
        for line in importlib.metadata.requires("dpcohort") or []:
            parts = _REQUIREMENT.match(line)
            if parts is not None and parts[1] != "dpcohort" and parts[2] not in _FOR_DEVELOPERS:
                extra = parts[2] or ""
                purposes.append((extra, parts[1], f"the extra {extra}" if extra else "everything"))
    found: dict[str, tuple[str, str, str]] = {}
    for extra, name, purpose in purposes:
        remedy = f"pip install 'dpcohort[{extra}]'" if extra else "pip install dpcohort"
        found.setdefault(name, (name, purpose, remedy))
    others = [(name, purpose, f"pip install {name}") for name, purpose in _OTHERS.items()]
    return [*found.values(), *(one for one in others if one[0] not in found)]


def doctor(as_json: JsonOption = False) -> None:
    """Show what is installed, what is missing and how to get it."""
    components = examine()
    if as_json:
        print_json(components)
        return
    table = new_table("", "what", "found", "for", close=True)
    for one in components:
        mark = Text("ok", "green") if one["found"] else Text("missing", "yellow")
        table.add_row(mark, one["name"], one["found"] or "-", one["needed_for"])
    console.print(table)
    missing = [one for one in components if one["found"] is None]
    for remedy in dict.fromkeys(one["remedy"] for one in missing):
        console.print(f"To get what is missing: {remedy}")
    if not missing:
        console.print("Everything is here.")


def examine() -> list[dict[str, str | None]]:
    """Look at this machine for what dpcohort needs for something; imports nothing heavy.

    Returns:
        Of each thing its ``name``, what was ``found`` (its version or value, None if it is
        missing), what it is ``needed_for``, and the ``remedy``: the command that gets it.

    Example:
        >>> examine()[0]["name"]
        'dpcohort'
    """
    python = f"{platform.python_version()} ({sys.platform})"
    rows: list[tuple[str, str | None, str, str | None]] = [
        ("dpcohort", __version__, "this", None),
        ("Python", python, "3.11 or newer", None),
        ("cores", str(os.cpu_count()), "speed", None),
    ]
    for package, purpose, command in _packages():
        rows.append((package, installed_version(package), purpose, command))
    for held in describe_datasets():
        remedy = held.how_to_get[0] if held.how_to_get else None
        records = f"{held.train_records:,} records"
        rows.append((f"data: {held.name}", held.found, records, remedy))
    names = ("name", "found", "needed_for", "remedy")
    return [dict(zip(names, row, strict=True)) for row in rows]
