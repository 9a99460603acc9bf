# SPDX-License-Identifier: Apache-2.0
"""Clients of a run whose cohorts were chosen during the training, as points of the report.

Such a plan has caps where others have probabilities. What stands in their place is what happened:
each client's share of all draws that the ledger counts, and the epsilon that draws and reports
together are certified to have spent: at the caps where reports chose the cohorts, because numbers
that follow from outputs prove less.
"""

from __future__ import annotations

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.report.html.client_points import ClientPoint
from dpcohort.runs.spending import certified_spending

__all__ = ["adaptive_points"]


def adaptive_points(
    plan: AdaptivePlan, draws: IntArray, reports: IntArray, *, method: str = "pld"
) -> list[ClientPoint]:
    """Every client of an adaptive plan as a point, in the plan's order.

    Args:
        plan: caps, terms and noise.
        draws: of each client, as the ledger counts them.
        reports: of each client, as the ledger counts them.
        method: the accountant that certifies what they spent.

    Example:
        >>> from dpcohort import Population, Training
        >>> from dpcohort.adaptive import make_adaptive_plan
        >>> people = Population.from_arrays(ids=["a", "b"], sizes=[90, 90], epsilon=2, delta=1e-5)
        >>> plan = make_adaptive_plan(people, Training(rounds=4, cohort_size=1, batch_size=9),
        ...                           seed=0)
        >>> [point.probability for point in adaptive_points(plan, np.array([3, 1]),
        ...                                                 np.array([4, 4]))]
        [0.75, 0.25]
    """
    people = plan.population
    spent = certified_spending(plan, draws, method=method, reports=reports)
    total = max(int(draws.sum()), 1)
    points = []
    for k, name in enumerate(people.ids):
        public = bool(people.public[k])
        epsilon = None if public else float(people.epsilon[k])
        known = None if public or np.isnan(spent[k]) else float(spent[k])
        noise = float(plan.noise_multipliers[k])
        points.append(
            ClientPoint(
                name=name,
                sentence=_sentence(plan, k, int(draws[k]), int(reports[k]), known),
                size=int(people.sizes[k]),
                public=public,
                epsilon=epsilon,
                delta=None if public else float(people.delta[k]),
                unbiased=float(people.unbiased[k]),
                probability=int(draws[k]) / total,
                planned_draws=int(plan.caps.draws[k]),
                draws=int(draws[k]),
                steps=int(draws[k]) * plan.training.local_steps,
                batch_size=int(plan.batch_sizes[k]),
                sampling_rate=float(plan.sampling_rates[k]),
                noise_multiplier=noise,
                noise_std=noise / int(plan.batch_sizes[k]),
                paper_std=None,
                tight_std=None,
                spent=known,
                share=None if known is None or epsilon is None else known / epsilon,
            )
        )
    return points


def _sentence(plan: AdaptivePlan, k: int, draws: int, reports: int, spent: float | None) -> str:
    people = plan.population
    name, size = people.ids[k], int(people.sizes[k])
    public = bool(people.public[k])
    promised = (
        "is public"
        if public
        else f"promised epsilon {people.epsilon[k]:.4g} at delta {people.delta[k]:.3g}"
    )
    times = f"It was drawn {_often(draws)}, at most {int(plan.caps.draws[k])} allowed"
    if plan.terms is not None:
        times += f", and reported {_often(reports)}, at most {int(plan.caps.reports[k])} allowed"
    lines = [
        f"{name} holds {size:,} records and {promised}.",
        f"{times}; {plan.rule_name} chose the cohorts during the training.",
    ]
    if public:
        lines.append("It adds no noise.")
    elif spent is None:
        lines.append("Its reports were raw, so no epsilon bounds what they told.")
    else:
        lines.append(
            f"Its noise multiplier is {plan.noise_multipliers[k]:.4g}, made for the caps; it is "
            f"certified to have spent at most epsilon {spent:.4g} of {people.epsilon[k]:.4g}."
        )
    return "\n".join(lines)


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
