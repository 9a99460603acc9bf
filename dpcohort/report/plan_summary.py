# SPDX-License-Identifier: Apache-2.0
"""A plan on one screen: what was decided, and the clients it changed most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpcohort._validate import IntArray
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan

__all__ = ["PlanSummary", "plan_table", "summarise"]


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """The numbers of a plan that fit in a sentence each.

    Attributes:
        clients: in the population.
        public: of them, without a budget.
        drawn: with at least one draw.
        records: held by all clients.
        epsilon_min: smallest budget; None if all are public.
        epsilon_max: largest budget; None if all are public.
        rule: name of the selection rule.
        eta: weight of the noise in Problem 1.
        gap: how far at most the probabilities are from optimal, in the objective.
        objective: value of Problem 1.
        bias: ||p - p^u||_1.
        noise_to_clip: norm of the noise on a round's mean gradient over C, as scheduled.
        unbiased_noise_to_clip: the same, expected, if clients were selected by size.
        certified: drawn private clients whose certificate holds.
        lifted: clients lifted from the paper's to the tight noise.
        large_delta: clients whose delta is at least 1 / size.
        sha256: hash of the plan.
    """

    clients: int
    public: int
    drawn: int
    records: int
    epsilon_min: float | None
    epsilon_max: float | None
    rule: str
    eta: float | None
    gap: float
    objective: float
    bias: float
    noise_to_clip: float
    unbiased_noise_to_clip: float
    certified: int
    lifted: int
    large_delta: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, ready for JSON."""
        return asdict(self)


def summarise(plan: Plan) -> PlanSummary:
    """The plan's headline numbers."""
    population = plan.population
    problem, u = plan.problem, plan.selection.unbiased
    unbiased_noise = float((problem.noise_costs * u**2 + problem.linear_costs * u).sum())
    private = ~population.public
    held = plan.drawn & private
    return PlanSummary(
        clients=len(population),
        public=int(population.public.sum()),
        drawn=int(plan.drawn.sum()),
        records=int(population.sizes.sum()),
        epsilon_min=float(population.epsilon[private].min()) if private.any() else None,
        epsilon_max=float(population.epsilon[private].max()) if private.any() else None,
        rule=plan.selection.rule,
        eta=plan.selection.eta,
        gap=plan.selection.gap,
        objective=plan.selection.objective,
        bias=float(np.abs(plan.selection.probabilities - u).sum()),
        noise_to_clip=plan.noise_to_clip,
        unbiased_noise_to_clip=float(np.sqrt(plan.training.total_steps * unbiased_noise)),
        certified=int((plan.certified_epsilon[held] <= population.epsilon[held]).sum()),
        lifted=int(plan.noise.lifted.sum()),
        large_delta=population.large_delta,
        sha256=plan.sha256,
    )


def plan_table(plan: Plan, *, rows: int = 12) -> RenderableType:
    """Headline sentences and the clients whose probability changed most, heard more and less."""
    summary = summarise(plan)
    return Group(_headline(plan, summary), "", _clients_table(plan, _most_changed(plan, rows)))


def _headline(plan: Plan, summary: PlanSummary) -> Text:
    training, contract = plan.training, plan.contract
    public = f", {summary.public} public" if summary.public else ""
    budgets = (
        f"budgets ε {summary.epsilon_min:.3g} to {summary.epsilon_max:.3g}"
        if summary.epsilon_min is not None
        else "no budgets"
    )
    eta = "" if summary.eta is None else f", η = {summary.eta:.4g}"
    text = Text()
    text.append(_counted(summary.clients, "client"), style="bold")
    text.append(f"{public}, {summary.records:,} records, {budgets}\n")
    text.append(
        f"{_counted(training.rounds, 'round')} of {_counted(training.cohort_size, 'draw')}, "
        f"{_counted(training.local_steps, 'local step')}; {contract.accountant} accountant, "
        f"{contract.sampler} batches, {contract.neighbours} neighbours\n"
    )
    text.append(f"{summary.rule}{eta}", style="bold")
    text.append(
        f": {summary.bias / 2:.0%} of the draws moved, {_counted(summary.drawn, 'client')} drawn; "
        f"at most {summary.gap:.1e} from the optimum of Problem 1\n"
    )
    text.append("noise on a round's mean gradient: ")
    text.append(f"{summary.noise_to_clip:.3g} C", style="bold green")
    text.append(f" (selected by size: {summary.unbiased_noise_to_clip:.3g} C)\n")
    text.append(f"{_counted(summary.certified, 'promise')} certified", style="bold green")
    if summary.lifted:
        text.append(f", {summary.lifted} lifted from the paper's noise", style="yellow")
    if summary.large_delta:
        text.append(
            f"; delta is at least 1/size for {_counted(summary.large_delta, 'client')}: a whole "
            "record may leak",
            style="yellow",
        )
    text.append(f"; plan {summary.sha256[:12]}")
    return text


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _most_changed(plan: Plan, rows: int) -> IntArray:
    """Positions of the clients with the largest change of probability, ordered by the change."""
    change = plan.selection.probabilities - plan.selection.unbiased
    if change.size <= rows:
        chosen = np.arange(change.size)
    else:
        less, more = rows // 2, rows - rows // 2
        order = np.argsort(change, kind="stable")
        chosen = np.concatenate([order[:less], order[-more:]])
    return chosen[np.argsort(-change[chosen], kind="stable")].astype(np.int64)


def _clients_table(plan: Plan, positions: IntArray) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("client", overflow="fold", min_width=8)
    for name in ("records", "ε", "by size", "chosen", "heard", "draws", "noise z", "spends ε"):
        table.add_column(name, justify="right", no_wrap=True)
    previous_more = True
    for k in positions.tolist():
        p, u = float(plan.selection.probabilities[k]), float(plan.selection.unbiased[k])
        if previous_more and p < u and table.row_count and positions.size < len(plan.population):
            table.add_row("…")
        previous_more = p >= u
        table.add_row(*_row(plan, k, p, u))
    return table


def _row(plan: Plan, k: int, p: float, u: float) -> list[str | Text]:
    population = plan.population
    public, draws = bool(population.public[k]), int(plan.schedule.counts[k])
    heard = p / u if u > 0 else 1.0
    style = "green" if heard > 1.005 else "red" if heard < 0.995 else ""
    return [
        Text(one_line(population.ids[k])),
        f"{population.sizes[k]:,}",
        "public" if public else f"{population.epsilon[k]:.3g}",
        f"{u:.4f}",
        f"{p:.4f}",
        Text(f"{heard:.2f}×", style=style),
        str(draws),
        "0" if public else f"{plan.noise_multipliers[k]:.4g}" if draws else "-",
        "-" if public or not draws else f"{plan.certified_epsilon[k]:.4g}",
    ]
