# SPDX-License-Identifier: Apache-2.0
"""Who was heard: share of draws over share of records, by budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.plan_file import AnyPlan
from dpcohort.errors import InputError
from dpcohort.report.figures.style import PALETTE, paper_style
from dpcohort.runs.evaluation import who_was_heard

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["participation_figure"]

_HATCHES = ("", "//", "..", "\\\\", "xx")


def participation_figure(
    plans: Mapping[str, AnyPlan],
    *,
    draws: Mapping[str, IntArray] | None = None,
    groups: int = 10,
) -> Figure:
    """Bars for each tenth of the clients, strictest budgets first; 1 is in proportion to data.

    Args:
        plans: name to plan, all of the same clients.
        draws: name to the draws of each client, as a ledger counts them; by default those that the
            plan schedules. A plan whose cohorts are chosen during the training schedules none.
        groups: how many groups of clients.

    Raises:
        InputError: there is no plan, they are of different clients, or nobody knows the draws.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[90] * 4, epsilon=[0.1, 0.5, 4, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=9), seed=0)
        >>> len(participation_figure({"aware": plan}, groups=2).axes[0].patches)
        2
    """
    from matplotlib.figure import Figure

    if len({plan.population.ids for plan in plans.values()}) != 1:
        raise InputError(
            "plans", given=f"{len(plans)} plans", allowed="one or more plans of the same clients"
        )
    known = draws or {}
    for name, plan in plans.items():
        if isinstance(plan, AdaptivePlan) and name not in known:
            raise InputError.because(
                f"{plan.rule_name} chooses each cohort during the training, so the plan {name} "
                "does not say who is drawn. Draw this figure of the run."
            )
    heard = {
        name: who_was_heard(plan, known.get(name), groups=groups) for name, plan in plans.items()
    }
    names = [group.name.removeprefix("decile ") for group in next(iter(heard.values()))]
    with paper_style():
        figure = Figure(figsize=(4.6, 3.0), layout="constrained")
        axis = figure.subplots()
        width = 0.8 / len(heard)
        for position, (name, found) in enumerate(heard.items()):
            places = np.arange(len(found)) + (position - (len(heard) - 1) / 2) * width
            axis.bar(
                places,
                [group.heard for group in found],
                width,
                label=name,
                color=PALETTE[position % len(PALETTE)],
                hatch=_HATCHES[position % len(_HATCHES)],
                edgecolor="white",
                linewidth=0.3,
            )
        axis.axhline(1, color="#555555", linewidth=0.8, linestyle=":")
        axis.set_xticks(range(len(names)), names)
        axis.set_xlabel("clients by budget, strictest first (tenths)")
        axis.set_ylabel("share of draws / share of records")
        axis.margins(y=0.06 + 0.09 * len(heard))  # room for the legend above the bars
        axis.legend(loc="upper left")
    return figure
