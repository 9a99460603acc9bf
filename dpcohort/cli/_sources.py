# SPDX-License-Identifier: Apache-2.0
"""What a command works on: the config, list of clients, plan or run that its SOURCE names."""

from __future__ import annotations

import json
from pathlib import Path

from dpcohort.cli._terminal import print_note, print_progress, say
from dpcohort.config import Config, config_for_clients, load_config
from dpcohort.errors import InputError
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan
from dpcohort.runs._configured import configured_plan
from dpcohort.runs._folder import PLAN, find_run


def say_unnamed_charge(words: str | None, *, private: bool) -> None:
    """Refuse to spend beside a charge that nobody named; in a simulation it is a note.

    Args:
        words: of ``unnamed_charge``.
        private: whether anything is really spent.
    """
    if words is not None and private:
        raise InputError.because(f"{words} Nothing was spent now.")
    if words is not None:
        print_note(words)


def say_never_drawn(plan: Plan) -> None:
    """Say in one line how many clients a plan never draws, and why."""
    if plan.drawn.all():
        return
    never, chosen = ~plan.drawn, plan.selection
    is_one = int(never.sum()) == 1
    verb, they, are = ("is", "it", "its") if is_one else ("are", "they", "their")
    why = f"by {are} size {they} {verb} drawn less than once in all rounds. Take more rounds."
    if (chosen.probabilities < 0.99 * chosen.unbiased)[never].any():
        why = f"the rule {one_line(chosen.rule)} leaves {'it' if is_one else 'them'} out."
    if chosen.rule == "privacy-aware" and "leaves" in why:
        why = (
            f"{are} noise would cost more than {they} {'adds' if is_one else 'add'}. "
            "selection.floor = 0.5 keeps half of everyone's draws by size."
        )
    say(f"{never.sum()} of {len(plan.population)} clients {verb} never drawn: {why}")


#: What a config, a list of clients and a plan end with.
_FILES = (".toml", ".csv", ".json")


def data_changes(
    changes: list[str] | None, data_dir: Path | None, simulate: int | None = None
) -> list[str]:
    """The settings to change, with the folder of the data and the seed of a simulation among them.

    Example:
        >>> data_changes(["run.seed=3"], None)
        ['run.seed=3']
    """
    found = list(changes or [])
    if data_dir is not None:
        # A path in a config starts from the config's folder, one on the command line from here.
        found.append(f"data.dir={json.dumps(str(data_dir.resolve()))}")
    if simulate is not None:
        found.append(f"run.simulate={simulate}")
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


def plan_place(source: Path | None) -> Path | None:
    """The plan of a SOURCE that is a run; any other SOURCE as it is."""
    if source is None or not is_run_place(source):
        return source

    return find_run(source) / PLAN


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
