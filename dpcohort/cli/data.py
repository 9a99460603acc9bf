# SPDX-License-Identifier: Apache-2.0
"""``dpcohort data``: which data sets are here, whether they are whole, and how to get them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption
from dpcohort.errors import FileFormatError

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="List, check and fetch data sets.", pretty_exceptions_enable=False
)

FolderOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder to look in first.", show_default=False)
]
NameArgument = Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")]


@app.command("list")
def list_(data_dir: FolderOption = None, as_json: JsonOption = False) -> None:
    """Show every data set that has a name, and where it is."""
    from rich import box
    from rich.table import Table

    from dpcohort.data import describe_datasets

    rows = describe_datasets(data_dir)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("name", "record", "classes", "train", "test", "where, or how to get it"):
        table.add_column(name, overflow="fold")
    for row in rows:
        shape = "x".join(map(str, row.shape))
        where = row.found or " or: ".join(row.how_to_get)
        numbers = (str(row.classes), f"{row.train_records:,}", f"{row.test_records:,}")
        table.add_row(row.name, shape, *numbers, where)
    console.print(table)


@app.command("check")
def check(
    name: Annotated[
        str, typer.Argument(help="mnist, fashion-mnist or cifar10; or an .npz file of yours.")
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
            console.print(
                f"{status.state:<8} {status.name}: {status.detail}", markup=False, soft_wrap=True
            )
    bad = [status.name for status in statuses if status.state != "ok"]
    if bad:
        raise FileFormatError(
            name, f"{', '.join(bad)} not whole. Get them again with: dpcohort data fetch {name}"
        )


def _read(name: str, *, as_json: bool) -> None:
    """Read a data set of the user's whole, and say what is in it."""
    from dpcohort.data import load_dataset

    data = load_dataset(name if name == "digits" or ":" in name else Path(name))
    shape, tested = "x".join(map(str, data.input_shape)), len(data.test_labels)
    if as_json:
        print_json(
            {
                "name": name,
                "input_shape": list(data.input_shape),
                "classes": data.classes,
                "train_records": len(data),
                "test_records": tested,
            }
        )
        return
    console.print(
        f"ok       {name}: {len(data):,} training and {tested:,} test records of shape {shape}, "
        f"{data.classes} classes",
        markup=False,
        soft_wrap=True,
    )


@app.command("fetch")
def fetch(
    name: NameArgument,
    to: Annotated[
        Path | None,
        typer.Option("--to", "--data-dir", help="The data folder; the user's cache if not given."),
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(help="A web folder to try before the original archives.")
    ] = None,
) -> None:
    """Download a data set, or the rest of it, and check it."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from dpcohort.data import fetch_dataset

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, int] = {}

        def show(file: str, received: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = int(bars.add_task(file, total=total))
            bars.update(tasks[file], completed=received)  # type: ignore[arg-type]

        folder = fetch_dataset(name, to, progress=show, mirror=mirror)
    console.print(f"{name} is whole in {folder}", markup=False)
