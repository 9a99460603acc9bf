# SPDX-License-Identifier: Apache-2.0
"""``dpcohort replan``: the plan with which a run goes on, for other clients or other budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.text import Text
from typer import Argument, Option

from dpcohort.accounting._segments import past_of
from dpcohort.cli._terminal import (
    JsonOption,
    LargeDeltaOption,
    console,
    new_table,
    print_json,
    print_progress,
    say,
    typed_here,
)
from dpcohort.clients import Population
from dpcohort.config import load_config
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.plain_text import counted, one_line
from dpcohort.plan import Plan
from dpcohort.runs import replan as plan_anew
from dpcohort.runs._config_clients import configured_charges, listed_clients
from dpcohort.runs._folder import CONFIG, PLAN, find_run


def replan(
    run: Annotated[Path, Argument(metavar="RUN", help="The run folder, finished or not.")],
    clients: Annotated[
        Path,
        Option(
            "--clients",
            metavar="FILE.csv",
            help="Everybody who takes part from now on; an epsilon is for past and future.",
        ),
    ],
    config: Annotated[
        Path | None,
        Option(
            metavar="FILE.toml",
            help="What to go on with, if not the run's own: its table says whose rows are whose.",
        ),
    ] = None,
    rounds: Annotated[
        int | None, Option(min=1, help="How many more; by default those that are left.")
    ] = None,
    cohort_size: Annotated[
        int | None,
        Option(min=1, help="Draws in each round from now on; by default those of the run."),
    ] = None,
    rule: Annotated[
        str | None, Option(help="Another rule than the run's.", callback=typed_here)
    ] = None,
    drop_exhausted: Annotated[
        bool, Option("--drop-exhausted", help="Clients with nothing left leave.")
    ] = False,
    seed: Annotated[int | None, Option(min=0, help="What the schedule is drawn from.")] = None,
    allow_large_delta: LargeDeltaOption = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Save the plan here (.json).")] = None,
    rows: Annotated[int, Option(min=2, help="Clients in the table.")] = 12,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run: clients leave, join or change, from what is left of each budget."""
    if out is not None and (out.is_dir() or out.resolve() == clients.resolve()):
        raise InputError.because(f"{out} is in use; name a new file for the plan, such as go.json.")
    folder = find_run(run)
    people = _people(folder, config, clients, allow_large_delta=allow_large_delta)
    charges = () if config is None else configured_charges(load_config(config))
    made = plan_anew(
        run,
        people,
        rounds=rounds,
        cohort_size=cohort_size,
        rule=rule,
        drop_exhausted=drop_exhausted,
        charges=charges,
        seed=seed,
        progress=print_progress,
    )
    old = Plan.load(folder / PLAN)
    if out is not None:
        made.save(out)
    changes = _changes(old, made, people)
    if as_json:
        print_json({"plan": made.sha256, "rounds": made.training.rounds, "clients": changes})
        return
    _print(changes, made, rows)
    if cohort_size is None and made.training.cohort_size != old.training.cohort_size:
        say(
            f"note: everybody was in every round; now all {made.training.cohort_size} who stay are."
        )
    if out is None:
        say("Nothing was written: --out plan.json keeps the plan.")
        return
    say(f"Wrote {out}")
    named = "CONFIG" if config is None else config
    say(f"Next: dpcohort train {named} --plan {out} --after {run} --out NEW_RUN")


def _people(
    folder: Path, config: Path | None, clients: Path, *, allow_large_delta: bool
) -> Population:
    """The clients of the list; a table, or else the list, says how many records they have."""
    try:
        if config is not None or (folder / CONFIG).exists():
            read = load_config(config or folder / CONFIG, allow_code=None)
            return listed_clients(read, clients, allow_large_delta=allow_large_delta)
    except DataMissingError:  # the table is not there any more
        if config is not None:
            raise
    except FileFormatError as error:
        if config is not None or error.line is not None or error.path != str(clients):
            raise
        raise InputError.because(
            f"{error} The data are those of the run; for others give --config FILE.toml."
        ) from None
    return Population.from_csv(clients, allow_large_delta=allow_large_delta)


def _changes(old: Plan, new: Plan, asked: Population) -> list[dict[str, Any]]:
    """Every client of before and after, and what became of it.

    Args:
        old: the plan of the run.
        new: the plan to go on with.
        asked: the list, with whole promises.
    """
    was = {name: k for k, name in enumerate(old.population.ids)}
    now = {name: k for k, name in enumerate(new.population.ids)}
    wanted = set(asked.ids)
    known = {name for segment in new.past.segments for name in segment.spent}
    known |= {name for charge in new.past.paid.charges for name in charge.spent}

    def change(name: str) -> str:
        if name not in was:
            return "comes back" if name in known else "joins"
        k, words = asked.index_of(name), []
        promised = old.past.paid.whole(old.population, was[name])
        then = (promised[0], float(old.population.sizes[was[name]]), promised[1])
        asked_now = (float(asked.epsilon[k]), float(asked.sizes[k]), float(asked.delta[k]))
        for shown, one, other in zip(("epsilon", "records", "delta"), then, asked_now, strict=True):
            if not np.isclose(one, other, rtol=0.0, atol=0.0, equal_nan=True):
                words.append(f"{shown} {one:g} -> {other:g}")
        return ", ".join(words) or "stays"

    found = []
    for name in (*now, *(name for name in was if name not in now)):
        k, paid = now.get(name), new.past.paid.to(name)[0]
        row: dict[str, Any] = {"client": name, "epsilon": None, "spent": None, "draws": 0}
        past = past_of(new.past.segments, name)
        if k is None:
            row["change"] = "exhausted, leaves" if name in wanted else "leaves"
            delta = float(old.population.delta[was[name]])
        else:
            delta = float(new.population.delta[k])
            place = asked.index_of(name)
            row["epsilon"] = None if asked.public[place] else float(asked.epsilon[place])
            row["change"] = change(name)
            row["draws"] = int(new.counts[k])
            row["noise_multiplier"] = float(new.noise_multipliers[k])
            row["certified_epsilon"] = float(new.certified_epsilon[k]) + paid
            worst = new.certificate.worst_case()
            row |= {title: float(column[k]) + paid for title, column in worst.items()}
        if delta == delta and (past.steps or paid):
            row["spent"] = paid + (past.epsilon(delta) if past.steps else 0.0)
        if paid:
            row["charged"] = paid
        found.append(row)
    return found


def _print(changes: list[dict[str, Any]], plan: Plan, rows: int) -> None:

    table = new_table("client", "change", close=True, overflow="fold")
    alone = ["alone" for _ in plan.certificate.worst_case()]
    for title in ("epsilon", "spent", "in the end", *alone, "draws", "noise z"):
        table.add_column(title, justify="right", no_wrap=True)
    order = sorted(changes, key=lambda row: row["change"] == "stays")
    for row in order[:rows]:
        stays, public = "noise_multiplier" in row, row["epsilon"] is None
        table.add_row(
            Text(one_line(row["client"])),
            row["change"],
            "public" if stays and public else "-" if public else f"{row['epsilon']:.4g}",
            "-" if row["spent"] is None else f"{row['spent']:.4g}",
            "-" if public else f"{row['certified_epsilon']:.4g}",
            *("-" if public else f"{row['alone_epsilon']:.4g}" for _ in alone),
            str(row["draws"]) if stays else "-",
            "-" if public or row["draws"] == 0 else f"{row['noise_multiplier']:.4g}",
        )
    console.print(table)
    if len(order) > rows:
        console.print(f"... and {len(order) - rows} more that stay or change (--rows, --json)")
    if any("charged" in row for row in changes):
        say("Spent includes what was paid beside the rounds: estimates of bounds, tuning.")
    if alone:
        say("Alone: what is spent in the end if all others collude with the server.")
    runs = counted(len(plan.past.segments), "run")
    say(
        f"{plan.training.rounds} more rounds after {runs}; every epsilon is certified over all of "
        "them. It holds where who leaves, joins or changes was not decided from what the training "
        "gave out."
    )
