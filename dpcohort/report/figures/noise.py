# SPDX-License-Identifier: Apache-2.0
"""Noise of every client against its budget: as deployed, and by the paper's formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.plan_file import AnyPlan
from dpcohort.errors import InputError
from dpcohort.report.figures.style import PALETTE, log_scale, paper_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["noise_figure", "papers_noise"]


def papers_noise(plan: AnyPlan) -> FloatArray:
    """Noise multipliers by the paper's formula at the plan's draws; NaN where there is none.

    Where cohorts are chosen during the training, the draws are the caps.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 300], epsilon=[1.0, 4.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=30), seed=0)
        >>> bool((papers_noise(plan) > plan.noise_multipliers).all())
        True
    """
    found = np.full(len(plan.population), np.nan)
    held = plan.drawn & ~plan.population.public
    found[held] = paper_noise_multiplier(
        epsilon=plan.population.epsilon[held],
        delta=plan.population.delta[held],
        sampling_rate=plan.sampling_rates[held],
        steps=plan.steps[held],
    )
    return found


def noise_figure(plan: AnyPlan) -> Figure:
    """Noise on a client's mean gradient, in units of the clip, against its epsilon.

    Both are for the same draws: those of the schedule, or the caps where cohorts are chosen during
    the training. Clients that are never drawn have no noise and are not shown.

    Raises:
        InputError: no drawn client has a budget.
    """
    from matplotlib.figure import Figure

    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    if held.size == 0:
        raise InputError.because("no drawn client of this plan has a budget, so there is no noise.")
    raw = isinstance(plan, AdaptivePlan) and plan.has_raw_reports
    deployed = "deployed" if raw else "deployed and certified"
    epsilon, batches = plan.population.epsilon[held], plan.batch_sizes[held]
    with paper_style():
        figure = Figure(figsize=(4.2, 3.0), layout="constrained")
        axis = figure.subplots()
        for name, z, marker, colour in (
            ("the paper's formula", papers_noise(plan), "x", PALETTE[1]),
            (deployed, plan.noise_multipliers, "o", PALETTE[0]),
        ):
            level = z[held] / batches
            axis.scatter(epsilon, level, s=16, marker=marker, color=colour, label=name)
        if isinstance(plan, AdaptivePlan):
            stamp = " (NOT PRIVATE: raw reports)" if raw else ""
            axis.set_title(f"{plan.rule_name}: noise for the caps{stamp}", fontsize=8)
        log_scale(axis.xaxis, axis.yaxis)
        axis.set_xlabel("privacy budget ε")
        axis.set_ylabel("noise on the mean gradient / C")
        axis.legend(loc="upper right")
    return figure
