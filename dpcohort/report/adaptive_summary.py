# SPDX-License-Identifier: Apache-2.0
"""An adaptive plan on one screen, and one client of it: caps, reports, noise, certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpcohort._validate import IntArray
from dpcohort.explain import ClientExplanation
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan

__all__ = [
    "AdaptiveExplanation",
    "adaptive_plan_table",
    "adaptive_plan_values",
    "explain_adaptive_client",
]


def adaptive_plan_values(plan: Plan) -> dict[str, Any]:
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
            "draw_cap": plan.schedule.counts.tolist(),
            "report_cap": plan.report_caps.tolist(),
            "noise_multiplier": plan.noise_multipliers.tolist(),
            "report_std": plan.report_stds.tolist(),
            "certified_epsilon": plan.certified_epsilon.tolist(),
        },
    }


def adaptive_plan_table(plan: Plan, *, rows: int = 12) -> RenderableType:
    """The plan in words, and the clients with the strictest and the loosest budgets."""
    return Group(*(Text(line) for line in _sentences(plan)), _clients(plan, rows))


def _sentences(plan: Plan) -> list[str]:
    people, training, terms = plan.population, plan.training, plan.terms
    settings = ", ".join(f"{key} {value}" for key, value in plan.selection.settings.items())
    private = np.flatnonzero(~people.public)
    lines = [
        f"{len(people)} clients ({int(people.public.sum())} public), {training.rounds} rounds of "
        f"{training.cohort_size} draws, each cohort chosen by {plan.selection.rule}"
        + (f" ({settings})." if settings else ".")
    ]
    if private.size:
        lines.append(
            f"Each is drawn at most {int(plan.schedule.counts[private[0]])} times"
            + (
                f" and asked at most {int(plan.report_caps[private[0]])} times; "
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


def _clients(plan: Plan, rows: int) -> Table:
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
            str(int(plan.schedule.counts[k])),
            "-" if plan.terms is None else str(int(plan.report_caps[k])),
            f"{plan.noise_multipliers[k]:.4g}",
            f"{plan.report_stds[k]:.3g}" if plan.has_private_reports else "-",
            certified,
        )
    return table


def _shown(plan: Plan, rows: int) -> IntArray:
    """The strictest and the loosest clients, as many of either."""
    order = np.argsort(np.nan_to_num(plan.population.epsilon, nan=np.inf), kind="stable")
    if order.size <= rows:
        return order
    half = rows // 2
    return np.concatenate([order[:half], order[half - rows :]])


# One client of an adaptive plan, in words and numbers: its caps, its noise, what it may spend.
#
# Such a plan has no probabilities: the rule chooses each cohort during the training. What is fixed
# for a client beforehand is how often it may be drawn and asked, and the noise made for that.


@dataclass(frozen=True, kw_only=True)
class AdaptiveExplanation(ClientExplanation):
    """Numbers about one client of an adaptive plan, beside those of every ``ClientExplanation``.

    Attributes:
        draw_cap: times it may be drawn.
        report_cap: times it may be asked for a report; None if the rule asks nobody.
        statistic: what it reports, as in "mean loss"; None if nothing.
        raw_reports: whether reports have no noise, so that nothing bounds what they tell.
        noise_multiplier: std of its noise on the clipped sum, over C.
        noise_std: std of its noise on the mean gradient, per coordinate, in units of C.
        report_std: std of the noise on its report; None without noised reports.
        report_share: of its budget that all reports together may take; None without them.
        certified_epsilon: what it will have spent at both caps; None if public or unbounded.
    """

    draw_cap: int
    report_cap: int | None
    statistic: str | None
    raw_reports: bool
    noise_multiplier: float
    noise_std: float
    report_std: float | None
    report_share: float | None
    certified_epsilon: float | None

    def _lines(self) -> list[str]:
        lines = [
            *super()._lines(),
            f"It has no probability beforehand: {self.rule} chooses each cohort during the "
            f"training, and may draw it at most {_often(self.draw_cap)}.",
        ]
        if self.statistic is not None:
            lines.append(self._reports())
        return [*lines, self._spending()]

    def _reports(self) -> str:
        asked = f"It may be asked for its {self.statistic} at most {_often(self.report_cap or 0)}"
        if self.raw_reports:
            return f"{asked}, and tells it WITHOUT NOISE: no epsilon bounds that. NOT PRIVATE."
        if self.public:
            return f"{asked}; its reports need no noise."
        return (
            f"{asked}; each report has noise of std {self.report_std:.3g}, and all together take "
            f"{100 * (self.report_share or 0):.3g} % of its budget."
        )

    def _spending(self) -> str:
        if self.public:
            return "It adds no noise."
        noise = (
            f"Its noise multiplier is {self.noise_multiplier:.4g} (std {self.noise_std:.4g} C on "
            "the mean gradient), made for these caps"
        )
        if self.certified_epsilon is None:
            return f"{noise}."
        return (
            f"{noise}: if it reaches them it is certified to spend epsilon "
            f"{self.certified_epsilon:.4g} of {self.epsilon:.4g}."
        )


def explain_adaptive_client(plan: Plan, client: str) -> AdaptiveExplanation:
    """Explain one client of a plan whose cohorts are chosen during the training.

    Args:
        plan: the plan.
        client: the client's id.

    Raises:
        InputError: there is no such client; the nearest id is suggested.

    Example:
        >>> from dpcohort import Population, Training
        >>> from dpcohort.adaptive import make_adaptive_plan
        >>> people = Population.from_arrays(ids=["a", "b"], sizes=[90, 90], epsilon=2, delta=1e-5)
        >>> plan = make_adaptive_plan(people, Training(rounds=4, cohort_size=1, batch_size=9),
        ...                           seed=0)
        >>> explain_adaptive_client(plan, "a").draw_cap
        4
    """
    people, terms = plan.population, plan.terms
    k = people.index_of(client)
    public = bool(people.public[k])
    noised = plan.has_private_reports and not public
    noise = float(plan.noise_multipliers[k])
    return AdaptiveExplanation(
        client=people.ids[k],
        rule=plan.selection.rule,
        size=int(people.sizes[k]),
        public=public,
        epsilon=None if public else float(people.epsilon[k]),
        delta=None if public else float(people.delta[k]),
        draw_cap=int(plan.schedule.counts[k]),
        report_cap=None if terms is None else int(plan.report_caps[k]),
        statistic=None if terms is None else f"mean {terms.statistic}",
        raw_reports=plan.has_raw_reports,
        noise_multiplier=noise,
        noise_std=noise / int(plan.batch_sizes[k]),
        report_std=float(plan.report_stds[k]) if noised else None,
        report_share=float(terms.share) if noised and terms is not None else None,
        certified_epsilon=None
        if public or plan.has_raw_reports
        else float(plan.certified_epsilon[k]),
    )


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
