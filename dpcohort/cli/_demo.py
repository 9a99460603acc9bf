# SPDX-License-Identifier: Apache-2.0
"""``dpcohort demo``: plan, train and compare on real data, start to finish, in a minute or so."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
from rich.live import Live
from rich.table import Table
from typer import Option

from dpcohort.cli._sources import plan_of
from dpcohort.cli._terminal import (
    JsonOption,
    console,
    new_table,
    print_json,
    program,
    say,
    sparkline,
)
from dpcohort.config import Config, commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.plan import Plan
from dpcohort.report._figures import save_plan_figure
from dpcohort.report._plan_summary import plan_table, summarise
from dpcohort.runs import (
    EachRound,
    Run,
    compare_runs,
    configured_data,
    configured_job,
    mean_interval,
    summarise_seeds,
    train_side_by_side,
    who_was_heard,
)
from dpcohort.runs._folder import SETTINGS as RUN_SETTINGS
from dpcohort.runs._folder import is_run, read_json, write_json

#: What is compared. The first is the paper's baseline, the last is what dpcohort does by default.
SETTINGS = {
    "paper noise, unbiased": ("paper", "unbiased"),
    "paper noise, privacy-aware": ("paper", "privacy-aware"),
    "tight noise, unbiased": ("tight", "unbiased"),
    "tight noise, privacy-aware": ("tight", "privacy-aware"),
}

# The step size stays the digits' own, 1: of 0.03, 0.1, 0.3, 1 and 3 it is the best for *unbiased*
# selection with tight noise, the stronger baseline, on held-out training records
# (benchmarks/demo_step_size.py). The test set had no say in it.
_CHANGES = ["training.sampling_rate=0.3", "training.cohort_size=5", "privacy.guard=lift"]


def demo(
    out: Annotated[Path, Option("--out", "-o", help="Folder for what it writes.")] = Path(
        "out/demo"
    ),
    seeds: Annotated[int, Option(min=1, help="Runs of each setting.")] = 5,
    rounds: Annotated[int, Option(min=1, help="Rounds of each run.")] = 60,
    as_json: JsonOption = False,
) -> None:
    """Plan for 20 clients with budgets of their own, train on the digits, compare four ways."""
    began = time.monotonic()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.because(f"{out} cannot be made: {error.strerror}.") from None
    config = demo_config(rounds=rounds)
    plan = _planned(config, out, quiet=as_json)
    groups, folders = _trained(config, out, seeds, quiet=as_json)
    results = _results(plan, groups, folders, out, config)

    write_json(out / "results.json", results)
    if as_json:
        print_json(results)
        return
    _print_results(results, groups, time.monotonic() - began)


def demo_config(*, rounds: int) -> Config:
    """The configuration of the demo: that of ``dpcohort new --from digits``, a little shorter.

    Example:
        >>> demo_config(rounds=60).training.cohort_size
        5
    """
    changes = [*_CHANGES, f"training.rounds={rounds}"]
    return loads_config(commented_config("digits")).with_overrides(changes)


def _planned(config: Config, out: Path, *, quiet: bool) -> Plan:
    """The plan, its picture, and one client explained."""
    plan = plan_of(config)
    plan.save(out / "plan.json")
    save_plan_figure(plan, out / "selection.png")
    if not quiet:
        console.print(plan_table(plan, rows=8))
        console.print("\nThe strictest client, explained", style="bold")
        console.print(plan.explain(_strictest(plan)).text())
        console.print()
    return plan


def _trained(
    config: Config, out: Path, seeds: int, *, quiet: bool
) -> tuple[dict[str, Sequence[Run]], dict[str, Path]]:
    """All settings and seeds side by side, all written down: a report has the same numbers."""
    data = configured_data(config)
    folders = {name: out / "runs" / name.replace(", ", "-").replace(" ", "-") for name in SETTINGS}
    works = []
    for name, (accountant, rule) in SETTINGS.items():
        changed = config.with_overrides(
            [f"privacy.accountant={accountant}", f"selection.rule={rule}"]
        )
        _clear(folders[name], name)
        for shift in range(seeds):
            job = configured_job(changed, data=data, shift=shift, label=name)
            works.append((name, job, folders[name] / f"seed-{job.seed}"))
    names, jobs, places = zip(*works, strict=True)

    def grouped(runs: Sequence[Run]) -> dict[str, Sequence[Run]]:
        return {
            name: [run for run, own in zip(runs, names, strict=True) if own == name]
            for name in SETTINGS
        }

    live = Live(console=console, refresh_per_second=8, transient=True)
    is_live = console.is_terminal and not quiet
    with live if is_live else nullcontext():

        def show(done: int, runs: Sequence[Run]) -> None:
            if is_live:
                live.update(_table(grouped(runs), f"round {done}"))
            elif not quiet and done % 10 == 0:
                means = [fmean(run.test_accuracy for run in g) for g in grouped(runs).values()]
                shown = ", ".join(f"{100 * mean:.0f} %" for mean in means)
                console.print(f"round {done}: accuracy {shown}")

        runs = train_side_by_side(jobs, outs=places, callbacks=[EachRound(len(jobs), show)])
    return grouped(runs), folders


def _results(
    plan: Plan,
    groups: dict[str, Sequence[Run]],
    folders: dict[str, Path],
    out: Path,
    config: Config,
) -> dict[str, Any]:

    best, pairs = "tight noise, privacy-aware", []
    for kind in ("paper noise", "tight noise"):
        names = (f"{kind}, privacy-aware", f"{kind}, unbiased")
        pairs.append(compare_runs(groups[names[0]], groups[names[1]], names=names))
    baseline = "paper noise, privacy-aware"
    pairs.append(compare_runs(groups[best], groups[baseline], names=(best, baseline)))
    first = groups[best][0]
    unbiased = plan_of(config.with_overrides(["selection.rule=unbiased"]))
    return {
        "format": "dpcohort demo",
        "plan": summarise(plan),
        "against_unbiased": unbiased.compare(plan).to_dict(),
        "strictest": plan.explain(_strictest(plan)).to_dict(),
        "settings": {name: asdict(summarise_seeds(runs)) for name, runs in groups.items()},
        "comparisons": [pair.to_dict() for pair in pairs],
        "heard": [asdict(g) for g in who_was_heard(first.plan, first.ledger.draws, groups=4)],
        "promises_hold": all(r.holds for runs in groups.values() for r in runs[0].receipts()),
        "stamp": first.receipts()[0].stamp,
        "files": [
            *(str(out / name) for name in ("plan.json", "selection.png", "results.json")),
            *map(str, folders.values()),
        ],
    }


def _print_results(
    results: dict[str, Any], groups: dict[str, Sequence[Run]], seconds: float
) -> None:
    console.print(_table(groups, f"{len(next(iter(groups.values())))} seeds"))
    for pair in results["comparisons"]:
        say(pair["sentence"])
    heard = ", ".join(
        f"ε {group['epsilon_low']:.2g}-{group['epsilon_high']:.2g}: {group['heard']:.2f}"
        for group in results["heard"]
        if group["epsilon_low"] is not None
    )
    console.print(f"Selected, in proportion to their records (tight, privacy-aware): {heard}")
    kept = "All promises hold" if results["promises_hold"] else "NOT ALL PROMISES HOLD"
    console.print(f"{kept}. {results['stamp']}")
    console.print(f"\n{seconds:.0f} s. Written:")
    for name in results["files"]:
        say(f"  {name}")
    last = Path(results["files"][-1])
    for step in (f"verify {last}", f"report {last.parent} -o demo.html", "new --from digits"):
        say(f"Next: {program()} {step}")


def _table(groups: dict[str, Sequence[Run]], title: str) -> Table:

    numbers = ("noise / C", "test accuracy", "95 % CI")
    table = new_table("setting", title=title, numbers=numbers)
    table.add_column("over the rounds")
    for name, runs in groups.items():
        curves = [run.curve().accuracy for run in runs]
        noise = f"{runs[0].plan.noise_to_clip:.2f}"
        if not all(curve.size for curve in curves):
            table.add_row(name, noise, "-", "-", "")
            continue
        found = mean_interval([float(curve[-1]) for curve in curves])
        spread = f"{100 * found.low:.1f} to {100 * found.high:.1f}" if found.count > 1 else "-"
        means = [float(sum(values) / len(values)) for values in zip(*curves, strict=True)]
        # Anchored at 0 and 1, so that the four lines can be compared with each other.
        line = sparkline([0.0, 1.0, *means])[2:]
        table.add_row(name, noise, f"{100 * found.mean:.1f} %", spread, line)
    return table


def _clear(folder: Path, label: str) -> None:
    """Take away the runs that an earlier demo left here, and nothing else."""
    for place in (folder, *folder.glob("seed-*")):
        if is_run(place) and read_json(place / RUN_SETTINGS).get("label") == label:
            shutil.rmtree(place)


def _strictest(plan: Plan) -> str:
    return plan.population.ids[int(np.nanargmin(plan.population.epsilon))]
