# SPDX-License-Identifier: Apache-2.0
"""``dpcohort replan``: the plan with which a run goes on, for other clients or other budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from dpcohort.accounting.segments import past_of
from dpcohort.cli.terminal import JsonOption, console, new_table, print_json, print_progress, say
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.plain_text import one_line

if TYPE_CHECKING:
    from dpcohort.plan import Plan


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
    rounds: Annotated[
        int | None, Option(min=1, help="How many more; by default those that are left.")
    ] = None,
    rule: Annotated[str | None, Option(help="Another rule than the run's.")] = None,
    drop_exhausted: Annotated[
        bool, Option("--drop-exhausted", help="Clients with nothing left leave.")
    ] = False,
    seed: Annotated[int | None, Option(min=0, help="What the schedule is drawn from.")] = None,
    allow_large_delta: Annotated[
        bool, Option("--allow-large-delta", help="Accept a delta of 1/size or more.")
    ] = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Save the plan here (.json).")] = None,
    rows: Annotated[int, Option(min=2, help="Clients in the table.")] = 12,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run: clients leave, join or change, from what is left of each budget."""
    from dpcohort.plan import Plan
    from dpcohort.runs.continuation import replan as plan_anew
    from dpcohort.runs.folder import RunFolder

    if out is not None and (out.is_dir() or out.resolve() == clients.resolve()):
        raise InputError.because(f"{out} is in use; name a new file for the plan, such as go.json.")
    folder = RunFolder.find(run)
    people = Population.from_csv(clients, allow_large_delta=allow_large_delta)
    made = plan_anew(
        run,
        people,
        rounds=rounds,
        rule=rule,
        drop_exhausted=drop_exhausted,
        seed=seed,
        progress=print_progress,
    )
    old = Plan.load(folder.plan)
    if out is not None:
        made.save(out)
    changes = _changes(old, made, people)
    if as_json:
        print_json({"plan": made.sha256, "rounds": made.training.rounds, "clients": changes})
        return
    _print(changes, made, rows)
    if out is None:
        say("Nothing was written: --out plan.json keeps the plan.")
        return
    say(f"Wrote {out}")
    say(f"Next: dpcohort train CONFIG --plan {out} --after {run} --out NEW_RUN")


def _changes(old: Plan, new: Plan, asked: Population) -> list[dict[str, Any]]:
    """Every client of before and after, and what became of it."""
    was = {name: k for k, name in enumerate(old.population.ids)}
    now = {name: k for k, name in enumerate(new.population.ids)}
    wanted = set(asked.ids)
    known = {name for segment in new.before for name in segment.spent}
    found = []
    for name in (*now, *(name for name in was if name not in now)):
        k, before = now.get(name), was.get(name)
        row: dict[str, Any] = {"client": name, "epsilon": None, "spent": None, "draws": 0}
        if k is None:
            row["change"] = "exhausted, leaves" if name in wanted else "leaves"
            past, delta = past_of(new.before, name), float(old.population.delta[was[name]])
            row["spent"] = past.epsilon(delta) if past.steps and delta == delta else None
        else:
            row["epsilon"] = None if new.population.public[k] else float(new.population.epsilon[k])
            row["change"] = _change(old, new, before, k, known)
            row["draws"] = int(new.schedule.counts[k])
            row["noise_multiplier"] = float(new.noise_multipliers[k])
            row["certified_epsilon"] = float(new.certified_epsilon[k])
            if new.past and new.past[k].steps and not new.population.public[k]:
                row["spent"] = new.past[k].epsilon(float(new.population.delta[k]))
        found.append(row)
    return found


def _change(old: Plan, new: Plan, before: int | None, k: int, known: set[str]) -> str:
    if before is None:
        return "comes back" if new.population.ids[k] in known else "joins"
    words = []
    for field, shown in (("epsilon", "epsilon"), ("sizes", "records"), ("delta", "delta")):
        then = getattr(old.population, field)[before].item()
        now = getattr(new.population, field)[k].item()
        if then != now and not (then != then and now != now):
            words.append(f"{shown} {then:g} -> {now:g}")
    return ", ".join(words) or "stays"


def _print(changes: list[dict[str, Any]], plan: Plan, rows: int) -> None:
    from rich.text import Text

    table = new_table("client", "change", close=True, overflow="fold")
    for title in ("epsilon", "spent", "in the end", "draws", "noise z"):
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
            str(row["draws"]) if stays else "-",
            "-" if public or row["draws"] == 0 else f"{row['noise_multiplier']:.4g}",
        )
    console.print(table)
    if len(order) > rows:
        console.print(f"... and {len(order) - rows} more that stay or change (--rows, --json)")
    many = "run" if len(plan.before) == 1 else "runs"
    say(
        f"{plan.training.rounds} more rounds after {len(plan.before)} {many}; every epsilon is "
        "certified over all of them. It holds where who leaves, joins or changes was not decided "
        "from what the training gave out."
    )
