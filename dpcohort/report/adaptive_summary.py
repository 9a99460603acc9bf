# SPDX-License-Identifier: Apache-2.0
"""An adaptive plan on one screen: caps, reports, noise, and what is certified at the caps."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpcohort._validate import IntArray
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.plain_text import one_line

__all__ = ["adaptive_plan_table", "adaptive_plan_values"]


def adaptive_plan_values(plan: AdaptivePlan) -> dict[str, Any]:
    """The plan in plain values for JSON.

    Example:
        >>> from dpcohort import Population, Training
        >>> from dpcohort.adaptive import make_adaptive_plan
        >>> people = Population.from_arrays(sizes=[90] * 4, epsilon=[2.0] * 4, delta=1e-5)
        >>> plan = make_adaptive_plan(people, Training(rounds=4, cohort_size=2, batch_size=9),
        ...                           seed=0)
        >>> adaptive_plan_values(plan)["clients"]["draw_cap"]
        [4, 4, 4, 4]
    """
    people = plan.population
    return {
        "sha256": plan.sha256,
        **plan.plain_settings(),
        "private": not plan.has_raw_reports,
        "clients": {
            "id": list(people.ids),
            "size": people.sizes.tolist(),
            "epsilon": people.epsilon.tolist(),
            "delta": people.delta.tolist(),
            "public": people.public.tolist(),
            "draw_cap": plan.caps.draws.tolist(),
            "report_cap": plan.caps.reports.tolist(),
            "noise_multiplier": plan.noise_multipliers.tolist(),
            "report_std": plan.report_stds.tolist(),
            "certified_epsilon": plan.certified_epsilon.tolist(),
        },
    }


def adaptive_plan_table(plan: AdaptivePlan, *, rows: int = 12) -> RenderableType:
    """The plan in words, and the clients with the strictest and the loosest budgets."""
    return Group(*(Text(line) for line in _sentences(plan)), _clients(plan, rows))


def _sentences(plan: AdaptivePlan) -> list[str]:
    people, training, terms = plan.population, plan.training, plan.terms
    settings = ", ".join(f"{key} {value}" for key, value in plan.rule_settings.items())
    private = np.flatnonzero(~people.public)
    lines = [
        f"{len(people)} clients ({int(people.public.sum())} public), {training.rounds} rounds of "
        f"{training.cohort_size} draws, each cohort chosen by {plan.rule_name}"
        + (f" ({settings})." if settings else ".")
    ]
    if private.size:
        lines.append(
            f"Each is drawn at most {int(plan.caps.draws[private[0]])} times"
            + (
                f" and asked at most {int(plan.caps.reports[private[0]])} times; "
                if terms is not None
                else "; "
            )
            + "the noise is made for that, and certified."
        )
    if terms is not None and terms.mode == "private":
        where = "one mini-batch" if terms.mini_batch else "all records"
        lines.append(
            f"A report is the mean {terms.statistic} on {where}, clipped at {terms.top:g}, with "
            f"noise; all reports together take {terms.share:.0%} of a budget.".replace("%", " %")
        )
    if plan.has_raw_reports:
        lines.append(
            "NOT PRIVATE: reports are raw. Clients tell their losses without noise, so no epsilon "
            "holds; use it to reproduce papers only."
        )
    lines.append(f"Plan {plan.sha256[:16]}")
    return lines


def _clients(plan: AdaptivePlan, rows: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("client", overflow="fold")
    for name in ("size", "epsilon", "draws", "reports", "z", "report std", "certified"):
        table.add_column(name, justify="right")
    for k in _shown(plan, rows).tolist():
        public = bool(plan.population.public[k])
        certified = "-" if public or plan.has_raw_reports else f"{plan.certified_epsilon[k]:.4g}"
        table.add_row(
            Text(one_line(plan.population.ids[k])),
            str(int(plan.population.sizes[k])),
            "public" if public else f"{plan.population.epsilon[k]:.4g}",
            str(int(plan.caps.draws[k])),
            "-" if plan.terms is None else str(int(plan.caps.reports[k])),
            f"{plan.noise_multipliers[k]:.4g}",
            f"{plan.report_stds[k]:.3g}" if plan.has_private_reports else "-",
            certified,
        )
    return table


def _shown(plan: AdaptivePlan, rows: int) -> IntArray:
    """The strictest and the loosest clients, as many of either."""
    order = np.argsort(np.nan_to_num(plan.population.epsilon, nan=np.inf), kind="stable")
    if order.size <= rows:
        return order
    half = rows // 2
    return np.concatenate([order[:half], order[half - rows :]])
