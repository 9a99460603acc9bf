# SPDX-License-Identifier: Apache-2.0
"""``dpcohort new``, ``doctor`` and ``data``: a config to start from, what is installed, data."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from dpcohort._version import __version__
from dpcohort.cli.terminal import (
    JsonOption,
    console,
    new_table,
    print_json,
    program,
    say,
    write_new,
)
from dpcohort.config import EXAMPLES, commented_config
from dpcohort.errors import FileFormatError


def new(
    path: Annotated[Path, Argument(help="Where to write it; - for the terminal.")] = Path(
        "dpcohort.toml"
    ),
    example: Annotated[
        str, Option("--from", help=f"Which example: {', '.join(EXAMPLES)}.")
    ] = "hospitals",
    force: Annotated[bool, Option("--force", help="Replace a file that exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented config to start from."""
    text = commented_config(example)
    if not write_new(path, text, force=force, as_json=as_json, example=example):
        return
    has_data = "\n[data]" in text
    following = f"train {path} --out RUN" if has_data else f"plan {path}"
    say(f"Wrote {path}. Look at it, change it, then: {program()} {following}")


#: What packages are for, by the extra that asks for them; "" is dpcohort itself.
_PURPOSES = {
    "": {
        "numpy": "everything",
        "scipy": "accounting",
        "dp-accounting": "the second opinion on every promise",
        "pydantic": "reading configs",
        "matplotlib": "pictures",
        "rich": "the terminal",
        "typer": "commands",
    },
    "train": {
        "torch": "training",
        "scikit-learn": "the embedded data set, estimators",
        "safetensors": "saving models",
        "cryptography": "private noise, certificates",
        "mpmath": "certified noise",
    },
    "report": {"jinja2": "the HTML report", "plotly": "its charts"},
    "flower": {"flwr": "a federation over Flower"},
}
#: Packages of others that are used where they are installed.
_OTHERS = {
    "tqdm": "progress bars in notebooks",
    "mlflow": "train --mlflow",
    "tensorboard": "train --tensorboard",
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
    from rich.text import Text

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
    from dpcohort.data import describe_datasets

    python = f"{platform.python_version()} ({sys.platform})"
    rows: list[tuple[str, str | None, str, str | None]] = [
        ("dpcohort", __version__, "this", None),
        ("Python", python, "3.11 or newer", None),
        ("cores", str(os.cpu_count()), "speed", None),
    ]
    for package, purpose, command in _packages():
        rows.append((package, _version(package), purpose, command))
    for held in describe_datasets():
        remedy = held.how_to_get[0] if held.how_to_get else None
        records = f"{held.train_records:,} records"
        rows.append((f"data: {held.name}", held.found, records, remedy))
    names = ("name", "found", "needed_for", "remedy")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


data = typer.Typer(
    no_args_is_help=True, help="List, check and fetch data sets.", pretty_exceptions_enable=False
)

FolderOption = Annotated[Path | None, Option("--data-dir", help="Folder to look in first.")]


@data.command("list")
def list_(data_dir: FolderOption = None, as_json: JsonOption = False) -> None:
    """Show every data set that has a name, and where it is."""
    from dpcohort.data import describe_datasets

    rows = describe_datasets(data_dir)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    columns = ("name", "record", "classes", "train", "test", "where, or how to get it")
    table = new_table(*columns, overflow="fold")
    for row in rows:
        shape = "x".join(map(str, row.shape))
        where = row.found or " or: ".join(row.how_to_get)
        numbers = (str(row.classes), f"{row.train_records:,}", f"{row.test_records:,}")
        table.add_row(row.name, shape, *numbers, where)
    console.print(table)


@data.command("check")
def check(
    name: Annotated[
        str, Argument(help="mnist, fashion-mnist or cifar10; or an .npz file of yours.")
    ],
    data_dir: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every file of a data set with its published checksum; read one of your own."""
    from dpcohort.data import DATASET_NAMES, check_dataset

    own = Path(name).exists() or name.endswith((".npz", ".npy")) or ":" in name
    # A known name is that set, also where a folder here is called the same.
    if name == "digits" or (own and name not in DATASET_NAMES):
        _read(name, as_json=as_json)
        return
    statuses = check_dataset(name, data_dir)
    if as_json:
        print_json([{**asdict(s), "path": s.path and str(s.path)} for s in statuses])
    else:
        for status in statuses:
            say(f"{status.state:<8} {status.name}: {status.detail}")
    bad = [status.name for status in statuses if status.state != "ok"]
    if bad:
        raise FileFormatError(
            name, f"{', '.join(bad)} not whole. Get them again with: dpcohort data fetch {name}"
        )


def _read(name: str, *, as_json: bool) -> None:
    """Read a data set of the user's whole, and say what is in it."""
    from dpcohort.data import load_dataset

    read = load_dataset(name if name == "digits" or ":" in name else Path(name))
    told = {
        "name": name,
        "input_shape": list(read.input_shape),
        "classes": read.classes,
        "train_records": len(read),
        "test_records": len(read.test_labels),
    }
    if as_json:
        print_json(told)
        return
    shape = "x".join(map(str, read.input_shape))
    say(
        f"ok       {name}: {len(read):,} training and {len(read.test_labels):,} test records of "
        f"shape {shape}, {read.classes} classes"
    )


@data.command("fetch")
def fetch(
    name: Annotated[str, Argument(help="mnist, fashion-mnist or cifar10.")],
    to: Annotated[
        Path | None,
        Option("--to", "--data-dir", help="The data folder; the user's cache if not given."),
    ] = None,
    mirror: Annotated[
        str | None, Option(help="A web folder to try before the original archives.")
    ] = None,
) -> None:
    """Download a data set, or the rest of it, and check it."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TransferSpeedColumn,
    )

    from dpcohort.data import fetch_dataset

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(file: str, received: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=received)

        folder = fetch_dataset(name, to, progress=show, mirror=mirror)
    console.print(f"{name} is whole in {folder}")
