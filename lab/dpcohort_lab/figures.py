# SPDX-License-Identifier: Apache-2.0
"""Figures of runs, plans and results for papers, in the style of dpcohort's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.errors import InputError
from dpcohort.explain import papers_noise
from dpcohort.plan import Plan, selection_problem
from dpcohort.report import PALETTE, log_scale, one_panel
from dpcohort.runs import Receipt, who_was_heard
from dpcohort.selection import rule_from_settings
from dpcohort_lab.checks import FloatArray, IntArray

if TYPE_CHECKING:
    from dpcohort_lab.recipes.page import Reproduction

__all__ = ["budgets_figure", "cells_figure", "noise_figure", "panels_at", "participation_figure"]


def budgets_figure(receipts: Sequence[Receipt]) -> Figure:
    """Certified against promised epsilon; a point above the line would be a broken promise.

    Args:
        receipts: of a run; public clients are left out.

    Raises:
        InputError: no receipt has a budget.
    """
    pairs = [
        (receipt.promised_epsilon, receipt.certified_epsilon, receipt.holds)
        for receipt in receipts
        if receipt.promised_epsilon and receipt.certified_epsilon is not None
    ]
    if not pairs:
        raise InputError.because("no receipt has a budget, so there is nothing to show.")
    with one_panel(3.4, 3.2) as (figure, axis):
        low, high = min(min(p[:2]) for p in pairs), max(max(p[:2]) for p in pairs)
        axis.plot(
            [low, high], [low, high], color="#555555", linewidth=0.8, label="promised = spent"
        )
        for kept, word, marker, colour in (
            (True, "kept", "o", PALETTE[0]),
            (False, "BROKEN", "X", PALETTE[1]),
        ):
            points = [(pair[0], pair[1]) for pair in pairs if pair[2] is kept]
            if points:
                promised, spent = zip(*points, strict=True)
                axis.scatter(promised, spent, s=16, marker=marker, color=colour, label=word)
        log_scale(axis.xaxis, axis.yaxis)
        axis.set(xlabel="promised ε", ylabel="certified ε spent")
        axis.legend(loc="upper left")
    return figure


def cells_figure(found: Reproduction) -> Figure:
    """One row a cell: ours with its interval over seeds, and the paper's number where it has one.

    Args:
        found: a result of ``dpcohort reproduce``.

    Raises:
        InputError: nothing was measured.
    """
    rows = [cell for cell in found.cells if cell["mean"] is not None]
    if not rows:
        raise InputError.because(f"{found.path} holds no cell that was measured.")
    with one_panel(5.2, 1.1 + 0.24 * len(rows)) as (figure, axis):
        for row, cell in enumerate(rows):
            if cell["low"] is not None:
                ends = [cell["low"], cell["high"]]
                axis.plot(ends, [row, row], color=PALETTE[0], linewidth=1.2)
        means = [cell["mean"] for cell in rows]
        axis.plot(means, range(len(rows)), "o", color=PALETTE[0], label="ours, 95 % interval")
        known = [(row, c["paper"]) for row, c in enumerate(rows) if c["paper"] is not None]
        if known:
            places, papers = zip(*known, strict=True)
            style: Any = {"color": PALETTE[1], "markerfacecolor": "none"}
            axis.plot(papers, places, "D", label="paper", **style)
        axis.set_yticks(range(len(rows)), [cell["name"] for cell in rows], parse_math=False)
        axis.invert_yaxis()
        axis.set_xlabel("test accuracy (%)")
        figure.legend(loc="outside upper right", ncols=2)
    return figure


def noise_figure(plan: Plan) -> Figure:
    """Noise on a client's mean gradient, in units of the clip, against its epsilon.

    Both are for the same draws: those of the schedule, or the caps where cohorts are chosen during
    the training. Clients that are never drawn have no noise and are not shown.

    Raises:
        InputError: no drawn client has a budget.
    """
    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    if held.size == 0:
        raise InputError.because("no drawn client of this plan has a budget, so there is no noise.")
    epsilon, batches = plan.population.epsilon[held], plan.batch_sizes[held]
    with one_panel(4.2, 3.0) as (figure, axis):
        for name, z, marker, colour in (
            ("the paper's formula", papers_noise(plan), "x", PALETTE[1]),
            (plan.reports.deployed, plan.noise_multipliers, "o", PALETTE[0]),
        ):
            level = z[held] / batches
            axis.scatter(epsilon, level, s=16, marker=marker, color=colour, label=name)
        marks = [f"({words})" for words in plan.reports.title]
        axis.set_title(
            " ".join([f"{plan.rule}: noise for {plan.participation.bounds}", *marks]),
            fontsize=8,
        )
        log_scale(axis.xaxis, axis.yaxis)
        axis.set(xlabel="privacy budget ε", ylabel="noise on the mean gradient / C")
        axis.legend(loc="upper right")
    return figure


_HATCHES = ("", "//", "..", "\\\\", "xx")


def participation_figure(
    plans: Mapping[str, Plan], *, draws: Mapping[str, IntArray] | None = None, groups: int = 10
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
    if len({plan.population.ids for plan in plans.values()}) != 1:
        raise InputError(
            "plans", given=f"{len(plans)} plans", allowed="one or more plans of the same clients"
        )
    known = draws or {}
    for name, plan in plans.items():
        plan.participation.draws_made(known.get(name), name)
    heard = {
        name: who_was_heard(plan, known.get(name), groups=groups) for name, plan in plans.items()
    }
    names = [group.name.removeprefix("decile ") for group in next(iter(heard.values()))]
    with one_panel(4.6, 3.0) as (figure, axis):
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
        axis.set(
            xlabel="clients by budget, strictest first (tenths)",
            ylabel="share of draws / share of records",
        )
        axis.margins(y=0.06 + 0.09 * len(heard))  # room for the legend above the bars
        axis.legend(loc="upper left")
    return figure


def panels_at(
    config: Config, population: Population, etas: Sequence[float | str]
) -> dict[str, FloatArray]:
    """The probabilities of clients at each weight of the noise, and by size, by their titles.

    Args:
        config: of the training that they are planned for.
        population: the clients.
        etas: weights of the noise, or "auto".

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("paper-figure"))
        >>> list(panels_at(config, config.population(), [0.1]))
        ['privacy-aware, η = 0.1', 'unbiased']
    """
    problem, _ = selection_problem(
        population, config.training, contract=config.contract, noise_model=config.noise_model
    )
    chosen = [rule_from_settings("privacy-aware", eta=eta).select(problem) for eta in etas]
    panels = {f"privacy-aware, η = {one.eta:g}": one.probabilities for one in chosen}
    return {**panels, "unbiased": population.unbiased}
