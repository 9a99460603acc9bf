# SPDX-License-Identifier: Apache-2.0
"""``dpcohort plan``: from clients and budgets to a certified plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import (
    ClientsOption,
    JsonOption,
    SetOption,
    SourceArgument,
    any_plan_from,
)
from dpcohort.errors import InputError
from dpcohort.plan import Plan

if TYPE_CHECKING:
    from dpcohort.plan import Plan

__all__ = ["command"]


def command(
    source: SourceArgument = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    rounds: Annotated[int | None, typer.Option(help="Global rounds.")] = None,
    cohort_size: Annotated[int | None, typer.Option(help="Draws per round.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected batch of a client.")] = None,
    rule: Annotated[str | None, typer.Option(help="Selection rule.")] = None,
    eta: Annotated[str | None, typer.Option(help="Weight of the noise: a number or auto.")] = None,
    bias_cap: Annotated[float | None, typer.Option(help="Largest ||p - p^u||_1.")] = None,
    accountant: Annotated[str | None, typer.Option(help="tight or paper.")] = None,
    guard: Annotated[
        str | None, typer.Option(help="Where paper noise does not certify: refuse or lift.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="What the schedule is drawn from.")] = None,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept a delta of 1/size or more.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Save the plan here.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw size x epsilon here (.png, .pdf, .svg).")
    ] = None,
    rows: Annotated[int, typer.Option(min=2, help="Clients in the table.")] = 12,
    as_json: JsonOption = False,
) -> None:
    """Select, schedule, calibrate and certify; nothing is trained."""
    overrides = list(changes or [])
    for key, value in (
        ("training.rounds", rounds),
        ("training.cohort_size", cohort_size),
        ("training.batch_size", batch_size),
        ("selection.rule", rule),
        ("selection.eta", eta),
        ("selection.bias_cap", bias_cap),
        ("privacy.accountant", accountant),
        ("privacy.guard", guard),
        ("schedule.seed", seed),
        ("population.allow_large_delta", "true" if allow_large_delta else None),
    ):
        if value is not None:
            overrides.append(f"{key}={value}")
    for written in (out, picture):
        if written is not None and any(_same(written, read) for read in (source, clients)):
            raise InputError.because(f"{written} is read by this command; write to another file.")
    if picture is not None:
        check_picture(picture)
    plan = any_plan_from(source, clients, overrides)
    if plan.adaptive is not None:
        _show_adaptive(plan, out, picture, rows=rows, as_json=as_json)
        return
    if out is not None:
        plan.save(out)
    if picture is not None:
        _draw(plan, picture)
    if as_json:
        print_json(_as_dict(plan))
        return
    from dpcohort.report.plan_summary import plan_table

    console.print(plan_table(plan, rows=rows))
    for path in (out, picture):
        if path is not None:
            console.print(f"Wrote {path}", markup=False)


def _show_adaptive(
    plan: Plan, out: Path | None, picture: Path | None, *, rows: int, as_json: bool
) -> None:
    """Caps and noise; who is drawn when is not known before the training."""
    from dpcohort.report.adaptive_summary import adaptive_plan_table, adaptive_plan_values

    if picture is not None:
        raise InputError.because(
            f"--picture draws probabilities, and {plan.selection.rule} has none before the "
            "training."
        )
    if out is not None:
        plan.save(out)
    if as_json:
        print_json(adaptive_plan_values(plan))
        return
    console.print(adaptive_plan_table(plan, rows=rows))
    if out is not None:
        console.print(f"Wrote {out}", markup=False)


def check_picture(picture: Path) -> None:
    """Refuse a picture that could not be written, before anything is."""
    from dpcohort.report.selection_figure import picture_format

    picture_format(picture)


def _same(written: Path, read: Path | None) -> bool:
    return read is not None and written.resolve() == read.resolve()


def _draw(plan: Plan, picture: Path) -> None:
    from dpcohort.report.selection_figure import save_selection_figure

    panels = {
        "unbiased": plan.selection.unbiased,
        plan.selection.rule: plan.selection.probabilities,
    }
    save_selection_figure(plan.population, panels, picture)


def _as_dict(plan: Plan) -> dict[str, object]:
    from dpcohort.report.plan_summary import summarise

    population = plan.population
    return {
        "summary": summarise(plan).to_dict(),
        "clients": {
            "id": list(population.ids),
            "size": population.sizes.tolist(),
            "epsilon": population.epsilon.tolist(),
            "delta": population.delta.tolist(),
            "public": population.public.tolist(),
            "batch_size": plan.batch_sizes.tolist(),
            "unbiased": plan.selection.unbiased.tolist(),
            "probability": plan.selection.probabilities.tolist(),
            "draws": plan.schedule.counts.tolist(),
            "noise_multiplier": plan.noise_multipliers.tolist(),
            "certified_epsilon": plan.certified_epsilon.tolist(),
        },
    }
