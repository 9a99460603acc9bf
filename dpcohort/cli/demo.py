# SPDX-License-Identifier: Apache-2.0
"""``dpcohort demo``: the main job on an example population, start to finish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption, plan_of
from dpcohort.config import commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.report.plan_summary import plan_table, summarise
from dpcohort.report.selection_figure import save_selection_figure

__all__ = ["command"]


def command(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for what it writes.")] = Path(
        "out/demo"
    ),
    as_json: JsonOption = False,
) -> None:
    """Plan for an example population: its table, its picture, one client explained."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.because(f"{out} cannot be made: {error.strerror}.") from None
    config = loads_config(commented_config("hospitals"))
    plan = plan_of(config)
    unbiased = plan_of(config.with_overrides(["selection.rule=unbiased"]))
    plan.save(out / "plan.json")
    panels = {
        "unbiased": plan.selection.unbiased,
        plan.selection.rule: plan.selection.probabilities,
    }
    save_selection_figure(plan.population, panels, out / "selection.png")
    comparison = unbiased.compare(plan)
    strictest = _strictest(plan.population.ids, plan.population.epsilon.tolist())
    explanation = plan.explain(strictest)
    if as_json:
        print_json(
            {
                "summary": summarise(plan).to_dict(),
                "against_unbiased": comparison.to_dict(),
                "strictest": explanation.to_dict(),
                "files": [str(out / name) for name in ("plan.json", "selection.png")],
            }
        )
        return
    console.print(plan_table(plan))
    console.print("\n[bold]The strictest client, explained[/bold]")
    console.print(explanation.text(), markup=False)
    console.print(
        f"\nPlan: {out / 'plan.json'}   Picture: {out / 'selection.png'}\n"
        "Next: dpcohort new, then dpcohort plan dpcohort.toml",
        markup=False,
    )


def _strictest(ids: tuple[str, ...], epsilon: list[float]) -> str:
    return min((e, name) for e, name in zip(epsilon, ids, strict=True) if e == e)[1]
