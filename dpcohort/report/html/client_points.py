# SPDX-License-Identifier: Apache-2.0
"""What the charts and the privacy table show of each client, or of groups of clients.

Up to :data:`MOST_POINTS` clients, each is a point with its own sentence. Above that, clients with
neighbouring budgets and sizes become one point, with the mean of what they are given and the worst
of what they spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.accounting.tight import calibrate_noise
from dpcohort.explain import Explanation
from dpcohort.plan import Plan

__all__ = ["MOST_POINTS", "ClientPoint", "adaptive_points", "client_points", "grouped_points"]


#: More clients than this are shown in groups.
MOST_POINTS = 1_000

#: Groups: so many budgets times so many sizes.
_BUDGETS, _SIZES = 20, 5

#: Above this many clients the tight noise is not computed beside the noise of the plan.
_MOST_CALIBRATED = 5_000


@dataclass(frozen=True, kw_only=True)
class ClientPoint:
    """One client, or a group of them.

    Attributes:
        name: id of the client, or what the group has in common.
        clients: how many it stands for.
        sentence: the client explained.
        size: records.
        public: needs no privacy.
        epsilon: promised.
        delta: promised.
        unbiased: probability by size.
        probability: probability in the plan.
        planned_draws: in the schedule.
        draws: counted in the ledger.
        steps: noisy steps counted.
        batch_size: B.
        sampling_rate: r.
        noise_multiplier: z of the plan.
        noise_std: z / B, certified: noise on the mean gradient over C.
        paper_std: what the paper's formula would add for the same steps.
        tight_std: what the tight accountant would add.
        spent: epsilon certified for the counted steps.
        share: spent over promised.
    """

    name: str
    clients: int = 1
    sentence: str
    size: float
    public: bool
    epsilon: float | None
    delta: float | None
    unbiased: float
    probability: float
    planned_draws: float
    draws: float
    steps: float
    batch_size: float
    sampling_rate: float
    noise_multiplier: float | None
    noise_std: float | None
    paper_std: float | None
    tight_std: float | None
    spent: float | None
    share: float | None

    @property
    def holds(self) -> bool:
        """Whether no more was spent than promised."""
        return self.public or (self.share is not None and self.share <= 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the charts: six digits, which is more than a chart can show."""
        values = {**asdict(self), "holds": self.holds}
        return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in values.items()}


def client_points(plan: Plan, draws: IntArray, *, method: str = "pld") -> list[ClientPoint]:
    """Every client of a plan as a point, in the plan's order.

    Args:
        plan: what was promised and planned.
        draws: draws of each client as the ledger counts them.
        method: the accountant that certifies what they spent.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(ids=["strict", "open"], sizes=[500, 500],
        ...                                  epsilon=[0.2, 4], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=10, cohort_size=2, batch_size=50), seed=1)
        >>> [point.name for point in client_points(plan, plan.schedule.counts)]
        ['strict', 'open']
    """
    known = ~np.isnan(plan.noise_multipliers) | (draws == 0)
    everyone = np.arange(len(plan.population))
    counted = np.where(known, draws, 0)
    spent = plan.spent_epsilon(counted, clients=everyone, method=method)
    # A draw that the plan knows no noise for spends without bound.
    spent = np.where(known, spent, np.inf)
    paper, tight = _other_noise(plan)
    points = []
    for k, told in enumerate(_explanations(plan)):
        points.append(
            ClientPoint(
                name=told.client,
                sentence=told.text(),
                size=told.size,
                public=told.public,
                epsilon=told.epsilon,
                delta=told.delta,
                unbiased=told.unbiased,
                probability=told.probability,
                planned_draws=told.draws,
                draws=int(draws[k]),
                steps=int(draws[k]) * plan.training.local_steps,
                batch_size=told.batch_size,
                sampling_rate=told.sampling_rate,
                noise_multiplier=told.noise_multiplier,
                noise_std=told.noise_std,
                paper_std=_known(paper[k]),
                tight_std=_known(tight[k]),
                spent=None if told.epsilon is None else _known(spent[k]),
                share=None if told.epsilon is None else _known(spent[k] / told.epsilon),
            )
        )
    return points


def _explanations(plan: Plan) -> Iterator[Explanation]:
    """Every client explained, but for the two questions that need a calibration of everybody."""
    population = plan.population
    shares, by_size = _noise_shares(plan)
    equal = plan.training.total_draws / len(population) * plan.training.local_steps
    variance = plan.noise_levels.floor + plan.noise_levels.level * equal
    private = ~population.public
    median = float(np.median(variance[private])) if private.any() else 1.0
    stds = plan.noise_multipliers / plan.batch_sizes
    for k, name in enumerate(population.ids):
        public = bool(population.public[k])
        yield Explanation(
            client=name,
            rule=plan.selection.rule,
            size=int(population.sizes[k]),
            public=public,
            epsilon=None if public else float(population.epsilon[k]),
            delta=None if public else float(population.delta[k]),
            batch_size=int(plan.batch_sizes[k]),
            sampling_rate=float(plan.sampling_rates[k]),
            unbiased=float(plan.selection.unbiased[k]),
            probability=float(plan.selection.probabilities[k]),
            expected_draws=float(plan.selection.probabilities[k]) * plan.training.total_draws,
            draws=int(plan.schedule.counts[k]),
            steps=int(plan.steps[k]),
            noise_multiplier=_known(plan.noise_multipliers[k]),
            noise_std=_known(stds[k]),
            certified_epsilon=None if public else float(plan.certified_epsilon[k]),
            noise_vs_median=float(variance[k]) / median if median > 0 else 0.0,
            noise_share=float(shares[k]),
            unbiased_noise_share=float(by_size[k]),
            one_more_draw=None,
            epsilon_of_one_more_draw=None,
            larger_budget=None,
        )


def _other_noise(plan: Plan) -> tuple[FloatArray, FloatArray]:
    """Noise on the mean gradient by the paper's formula and by the tight accountant."""
    size = len(plan.population)
    paper, tight = np.full(size, np.nan), np.full(size, np.nan)
    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    if held.size == 0:
        return paper, tight
    budget = {
        "epsilon": plan.population.epsilon[held],
        "delta": plan.population.delta[held],
        "sampling_rate": plan.sampling_rates[held],
        "steps": plan.steps[held],
    }
    paper[held] = paper_noise_multiplier(**budget) / plan.batch_sizes[held]
    if held.size <= _MOST_CALIBRATED:
        z = calibrate_noise(
            **budget, sampler=plan.contract.sampler, neighbours=plan.contract.neighbours
        )
        tight[held] = z / plan.batch_sizes[held]
    return paper, tight


def _noise_shares(plan: Plan) -> tuple[FloatArray, FloatArray]:
    """Each client's share of all expected noise, as selected and by size."""
    found = []
    for p in (plan.selection.probabilities, plan.selection.unbiased):
        noise = plan.problem.noise_costs * p**2 + plan.problem.linear_costs * p
        total = float(noise.sum())
        found.append(noise / total if total > 0 else np.zeros_like(noise))
    return found[0], found[1]


def grouped_points(points: list[ClientPoint]) -> list[ClientPoint]:
    """Clients with neighbouring budgets and sizes as one point each; the public ones as another.

    Example:
        >>> grouped_points([])
        []
    """
    private = sorted((p for p in points if not p.public), key=lambda p: p.epsilon or 0.0)
    cells: list[list[ClientPoint]] = []
    for part in _split(private, _BUDGETS):
        cells.extend(_split(sorted(part, key=lambda p: p.size), _SIZES))
    public = [p for p in points if p.public]
    return [_merged(cell) for cell in [*cells, public] if cell]


def _split(points: list[ClientPoint], parts: int) -> list[list[ClientPoint]]:
    edges = np.linspace(0, len(points), parts + 1).astype(int).tolist()
    return [points[a:b] for a, b in pairwise(edges) if b > a]


def _merged(cell: list[ClientPoint]) -> ClientPoint:
    if len(cell) == 1:
        return cell[0]
    first, count = cell[0], len(cell)
    low, high = min(p.size for p in cell), max(p.size for p in cell)
    records = f"{low:,.0f} to {high:,.0f} records"
    spent = [p.share for p in cell if p.share is not None]
    heard = sum(p.probability for p in cell) / max(sum(p.unbiased for p in cell), 1e-300)
    if first.public:
        name = f"{count:,} public clients"
        words = f"{name} with {records}. They are heard {heard:.3g} times as often as by size."
    else:
        budgets = [p.epsilon for p in cell if p.epsilon is not None]
        name = f"{count:,} clients, ε {min(budgets):.3g} to {max(budgets):.3g}, {records}"
        most = max(spent, default=0.0)
        words = (
            f"{name}. They are heard {heard:.3g} times as often as by size; none has spent more "
            f"than {most:.2%} of its budget."
        )
    return replace(
        first,
        name=name,
        clients=count,
        sentence=words,
        size=_mean(cell, "size") or 0.0,
        epsilon=_mean(cell, "epsilon"),
        unbiased=_mean(cell, "unbiased") or 0.0,
        probability=_mean(cell, "probability") or 0.0,
        planned_draws=_mean(cell, "planned_draws") or 0.0,
        draws=_mean(cell, "draws") or 0.0,
        steps=_mean(cell, "steps") or 0.0,
        batch_size=_mean(cell, "batch_size") or 0.0,
        sampling_rate=_mean(cell, "sampling_rate") or 0.0,
        noise_multiplier=_mean(cell, "noise_multiplier"),
        noise_std=_mean(cell, "noise_std"),
        paper_std=_mean(cell, "paper_std"),
        tight_std=_mean(cell, "tight_std"),
        spent=_mean(cell, "spent"),
        # The worst, not the mean: a broken promise must not vanish in a group.
        share=max(spent) if spent else None,
    )


def _mean(cell: list[ClientPoint], field: str) -> float | None:
    values = [getattr(point, field) for point in cell]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


# Clients of a run whose cohorts were chosen during the training, as points of the report.
#
# Such a plan has caps where others have probabilities. What stands in their place is what happened:
# each client's share of all draws that the ledger counts, and the epsilon that draws and reports
# together are certified to have spent: at the caps where reports chose the cohorts, because numbers
# that follow from outputs prove less.


def adaptive_points(
    plan: Plan, draws: IntArray, reports: IntArray, *, method: str = "pld"
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
    spent = plan.spent_epsilon(draws, reports, method=method)
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
                planned_draws=int(plan.schedule.counts[k]),
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


def _sentence(plan: Plan, k: int, draws: int, reports: int, spent: float | None) -> str:
    people = plan.population
    name, size = people.ids[k], int(people.sizes[k])
    public = bool(people.public[k])
    promised = (
        "is public"
        if public
        else f"promised epsilon {people.epsilon[k]:.4g} at delta {people.delta[k]:.3g}"
    )
    times = f"It was drawn {_often(draws)}, at most {int(plan.schedule.counts[k])} allowed"
    if plan.terms is not None:
        times += f", and reported {_often(reports)}, at most {int(plan.report_caps[k])} allowed"
    lines = [
        f"{name} holds {size:,} records and {promised}.",
        f"{times}; {plan.selection.rule} chose the cohorts during the training.",
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
