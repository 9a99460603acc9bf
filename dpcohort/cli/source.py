# SPDX-License-Identifier: Apache-2.0
"""Where a command takes its clients and settings from, said the same way in every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpcohort.cli.output import print_progress
from dpcohort.config import Config, config_for_clients, load_config
from dpcohort.errors import InputError
from dpcohort.runs.configured import configured_plan

if TYPE_CHECKING:
    from dpcohort.plan import Plan

__all__ = [
    "ClientsOption",
    "DataDirOption",
    "DeviceOption",
    "JsonOption",
    "SetOption",
    "SourceArgument",
    "data_changes",
    "is_run_place",
    "plan_from",
    "plan_of",
    "read_config",
    "shape_from",
]

#: What a config, a list of clients and a plan end with.
_FILES = (".toml", ".csv", ".json")

SourceArgument = Annotated[
    Path | None,
    Argument(
        metavar="[SOURCE]",
        help="A config (.toml), a list of clients (.csv) or a saved plan (.json).",
        show_default=False,
    ),
]
ClientsOption = Annotated[
    Path | None,
    Option(
        "--clients",
        metavar="FILE.csv",
        help="Clients as id,size,epsilon,delta[,batch_size][,public]; replaces a config's own.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, e.g. --set training.rounds=200; may be repeated.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON for programs.")]
DeviceOption = Annotated[
    str | None, Option(help="auto, cpu or cuda; the config's if not given.", show_default=False)
]

DataDirOption = Annotated[
    Path | None, Option("--data-dir", help="Where to look for the data first.", show_default=False)
]


def data_changes(changes: list[str] | None, data_dir: Path | None) -> list[str]:
    """The settings to change, with the folder of the data among them.

    Example:
        >>> data_changes(["run.seed=3"], None)
        ['run.seed=3']
    """
    found = list(changes or [])
    if data_dir is not None:
        # A path in a config starts from the config's folder, one on the command line from here.
        found.append(f"data.dir={json.dumps(str(data_dir.resolve()))}")
    return found


def read_config(
    source: Path | None, clients: Path | None, overrides: list[str] | None = None
) -> Config:
    """The config behind a SOURCE that is a config or a list of clients."""
    if source is not None and source.suffix.lower() == ".csv":
        if clients is not None:
            raise InputError.because(f"two lists of clients are given: {source} and {clients}.")
        source, clients = None, source
    if source is not None and source.suffix.lower() == ".json":
        raise InputError.because(
            f"{source} looks like a finished plan; this command needs the config or the list of "
            "clients it was made from."
        )
    if source is not None:
        config = load_config(source)
        config = config if clients is None else config.with_clients(clients)
    elif clients is not None:
        config = config_for_clients(clients)
    else:
        raise InputError.because(
            "nothing to plan: give a config (dpcohort new writes one) or --clients FILE.csv."
        )
    return config.with_overrides(overrides) if overrides else config


def is_run_place(source: Path) -> bool:
    """Whether a SOURCE can only be a run: a folder, or nothing yet that looks like a file.

    Example:
        >>> is_run_place(Path("runs/none")), is_run_place(Path("none.toml"))
        (True, False)
    """
    return source.is_dir() or not (source.exists() or source.suffix.lower() in _FILES)


def plan_from(
    source: Path | None, clients: Path | None = None, overrides: list[str] | None = None
) -> Plan:
    """A saved plan, or the plan a config or a list of clients asks for."""
    if source is None or source.suffix.lower() != ".json":
        config = read_config(source, clients, overrides)
        return configured_plan(config, progress=print_progress)
    if clients is not None or overrides:
        raise InputError.because(
            f"{source} is a finished plan: --clients and --set cannot change it. Give the "
            "config it was made from."
        )
    from dpcohort.plan import Plan

    plan = Plan.load(source)
    plan.verify_unless_made_here()
    return plan


def plan_of(config: Config) -> Plan:
    """The plan that a config asks for whose cohorts are drawn before the training.

    Raises:
        InputError: the rule chooses cohorts during the training.
    """
    if config.is_adaptive:
        raise InputError.because(
            f"the rule {config.rule} chooses cohorts during the training, so there is no schedule "
            "to look at. dpcohort plan shows its caps and noise; dpcohort train runs it."
        )
    return configured_plan(config, progress=print_progress)


def shape_from(text: str) -> tuple[int, ...]:
    """The shape of a record from the words of ``--input-shape``.

    Raises:
        InputError: they are no lengths.

    Example:
        >>> shape_from("1x28x28"), shape_from("64")
        ((1, 28, 28), (64,))
    """
    try:
        return tuple(int(length) for length in text.replace("x", ",").split(","))
    except ValueError:
        allowed = "lengths such as 64 or 1x28x28"
        raise InputError("--input-shape", given=text, allowed=allowed) from None
