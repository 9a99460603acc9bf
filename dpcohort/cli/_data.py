# SPDX-License-Identifier: Apache-2.0
"""``dpcohort data``: data sets listed, checked and fetched, and bounds estimated with noise."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)
from typer import Argument, Option

from dpcohort._validate import did_you_mean
from dpcohort.accounting import Charge
from dpcohort.accounting._charges import in_order, write_charge
from dpcohort.cli._sources import data_changes, say_unnamed_charge
from dpcohort.cli._terminal import (
    JsonOption,
    PaidAfterOption,
    SetOption,
    SimulateOption,
    console,
    new_table,
    print_json,
    say,
    typed_here,
)
from dpcohort.config import (
    load_config,
)
from dpcohort.data import (
    DATASET_NAMES,
    check_dataset,
    describe_datasets,
    fetch_dataset,
    load_dataset,
    read_table,
)
from dpcohort.data._dataset import simulation_seed
from dpcohort.data._private_bounds import estimate_bounds
from dpcohort.data._tables import (
    client_names,
    held_for_test,
    person_names,
)
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plain_text import one_line
from dpcohort.runs import configured_data, data_section
from dpcohort.runs._config_clients import configured_charges, own_clients, unnamed_charge
from dpcohort.runs._config_data import person_terms
from dpcohort.runs._continuation import charge_run
from dpcohort.text_files import is_table, number_in

data = typer.Typer(
    no_args_is_help=True, help="List, check and fetch data sets.", pretty_exceptions_enable=False
)

_EMBEDDED = ("digits", "heart-disease")
FolderOption = Annotated[Path | None, Option("--data-dir", help="Folder to look in first.")]


@data.command("list")
def list_(data_dir: FolderOption = None, as_json: JsonOption = False) -> None:
    """Show every data set that has a name, and where it is."""
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
        str,
        Argument(help="mnist, fashion-mnist, cifar10; an .npz file of yours; a config (.toml)."),
    ],
    data_dir: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every file of a data set with its published checksum; read one of your own."""
    own = Path(name).exists() or name.endswith((".npz", ".npy")) or ":" in name
    # A known name is that set, also where a folder here is called the same.
    if name in _EMBEDDED or (own and name not in DATASET_NAMES):
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
    if name.endswith(".toml"):
        read = configured_data(load_config(Path(name)))
    else:
        read = load_dataset(typed_here(name) if name in _EMBEDDED or ":" in name else Path(name))
    read.refuse_unusable()
    told = {
        "name": name,
        "input_shape": list(read.input_shape),
        "classes": read.classes,
        "train_records": len(read.train_labels),
        **({} if read.persons is None else {"train_persons": len(read)}),
        "test_records": len(read.test_labels),
        **({"remarks": list(read.remarks)} if read.remarks else {}),
    }
    if as_json:
        print_json(told)
        return
    shape = "x".join(map(str, read.input_shape))
    kind = f"{read.classes} classes" if read.task.predicts_classes else read.task.kind
    say(
        f"ok       {name}: {len(read.train_labels):,} training and {len(read.test_labels):,} test "
        f"records of shape {shape}, {kind}"
        + ("" if read.persons is None else f"; the unit is one of {len(read):,} training persons")
    )
    for words in read.remarks:
        say(f"note     {words}")


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


@data.command("bounds")
def bounds(
    config: Annotated[Path, Argument(metavar="CONFIG", help="A config with a table.")],
    ranges: Annotated[
        list[str],
        Option("--range", metavar="COLUMN=LOW:HIGH", help="A public range that holds the column."),
    ],
    out: Annotated[Path, Option("--out", "-o", help="Where to write the estimate, a new file.")],
    share: Annotated[
        float, Option(help="Of the epsilon that each client has left that is spent.")
    ] = 0.1,
    simulate: SimulateOption = None,
    after: PaidAfterOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate bounds of columns with noise, paid for from every client's budget."""
    read = load_config(config).with_overrides(data_changes(changes, None, simulate))
    section = data_section(read)
    if not is_table(section.name) or section.client is None:
        raise InputError.because(
            "bounds are estimated for a table whose column data.client says who pays for them."
        )
    if str(out) == "-":
        raise InputError.because("an estimate is paid for: --out names the file that says so.")
    if out.exists():  # each estimate is paid for
        raise InputError.because(f"{out} exists already, and was paid for. Choose another name.")
    place = read.folder / section.name
    table = read_table(place)
    if section.client not in table:
        raise InputError("column", given=section.client, allowed=f"one of {', '.join(table)}")
    owners = np.array(client_names(section.client, table[section.client]))
    seed_of_test = section.seed or 0
    terms = person_terms(read)
    whose = person_names(section.person, table, terms.blank_person)
    held = held_for_test(len(owners), owners, whose, share=section.test_share, seed=seed_of_test)
    # Test records are not trained on, and are not looked at here.
    rows = np.flatnonzero(~held)
    if whose is not None and read.contract.unit.name == "person":  # one row of each, by chance
        one = replace(terms, rows_per_person=1).group(whose[rows], owners[rows], seed=seed_of_test)
        rows = rows[one.first]
    population = own_clients(read, owners[rows], place.stem)
    asked = dict(_range(word) for word in ranges)
    for name in asked:
        if name not in table:
            step = did_you_mean(name, table)
            raise InputError("--range", given=name, allowed="a column", next_step=step)

    def begin(charge: Charge) -> None:
        # Counted before it is spent: whatever stops this, the file says what was paid.
        if after is not None:
            charge_run(after, charge)
        write_charge(out, charge)

    known = configured_charges(read)
    words = unnamed_charge(read, population.ids, known, out.parent)
    seed = simulation_seed(read.run.simulate, public=bool(section.public), seed=read.run.seed)
    say_unnamed_charge(words, private=seed is None)
    charge, found = estimate_bounds(
        {name: [table[name][row] for row in rows.tolist()] for name in asked},
        owners[rows].tolist(),
        population,
        asked,
        share=share,
        contract=read.contract,
        seed=seed,
        known=known,
        before_spending=begin,
    )
    write_charge(out, charge, **found)
    if as_json:
        print_json(path=str(out), bounds=found["bounds"], charge=charge.id)
        return
    for name, ends in found["bounds"].items():
        say(f"{one_line(name)}: {ends[0]:g} to {ends[1]:g}")
    whole = f", after {', '.join(one.title for one in in_order(known))}" if known else ""
    say(f"Each client paid {share:.0%} of the epsilon that it had left{whole}; {found['stamp']}")
    named = os.path.relpath(out, read.folder)
    say(f'Wrote {out}. Next: in {config}, under [data], estimated_bounds = "{named}"')
    say("Do it before anything else is paid for: what does not know of this charge is refused.")


def _range(word: str) -> tuple[str, tuple[float, float]]:
    name, _, ends = word.rpartition("=")
    low, _, high = ends.partition(":")
    found = number_in(low), number_in(high)
    if not name or found[0] is None or found[1] is None:
        allowed = "a column and its public range, as in bmi=0:200"
        raise InputError("--range", given=word, allowed=allowed)
    return name, (found[0], found[1])
