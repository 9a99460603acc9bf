# SPDX-License-Identifier: Apache-2.0
"""Clients as points of the page's charts: what each promised, was planned for and spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import singledispatch
from itertools import pairwise
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting import Charge, calibrate_noise
from dpcohort.accounting._segments import left_population
from dpcohort.explain import explain_client, explain_clients, papers_noise
from dpcohort.plan import Plan
from dpcohort.planning._participation import FixedCohorts, Participation
from dpcohort.planning._reports import often
from dpcohort.runs import Receipt, make_receipts

#: More clients than this are shown in groups.
MOST_POINTS = 1_000

#: Groups: so many budgets times so many sizes.
_BUDGETS, _SIZES = 20, 5

#: What a group has the mean of, over the clients that have it.
_AVERAGED = (
    *("size", "epsilon", "unbiased", "probability", "planned_draws", "draws", "steps"),
    *("batch_size", "sampling_rate", "noise_multiplier", "noise_std", "paper_std", "tight_std"),
    *("spent", "charged", "weight", "own_noise", "alone"),
)

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
        epsilon: promised in all.
        delta: promised in all.
        unbiased: probability by size.
        probability: probability in the plan.
        planned_draws: in the schedule.
        draws: counted in the ledger.
        steps: noisy steps counted.
        batch_size: B.
        sampling_rate: r.
        noise_multiplier: z of the plan.
        noise_std: z / B, certified: noise on the mean gradient over C. Where noise is distributed
            it is that of the honest members over the client's weight.
        paper_std: what the paper's formula would add for the same steps.
        tight_std: what the tight accountant would add.
        spent: epsilon certified for the counted steps, and what was charged before them.
        share: spent over promised.
        charged: epsilon that was paid beside the steps.
        weight: factor on its mean gradient; None unless noise is distributed.
        own_noise: its share of noise over C; None unless noise is distributed.
        alone: what is spent if all others collude; None unless noise is distributed.
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
    paper_std: float | None = None
    tight_std: float | None = None
    spent: float | None
    share: float | None
    charged: float = 0.0
    weight: float | None = None
    own_noise: float | None = None
    alone: float | None = None

    @property
    def holds(self) -> bool:
        """Whether no more was spent than promised."""
        return self.public or (self.share is not None and self.share <= 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the charts: six digits, which is more than a chart can show."""
        values = {**asdict(self), "holds": self.holds}
        return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in values.items()}


def client_points(
    plan: Plan,
    draws: IntArray,
    reports: IntArray | None = None,
    *,
    later: Sequence[Charge] = (),
    method: str = "pld",
) -> list[ClientPoint]:
    """Every client of a plan as a point, in the plan's order.

    A plan with capped cohorts has caps where others have probabilities. What stands in their place
    is what happened: each client's share of all draws that the ledger counts, and the epsilon that
    draws and reports together are certified to have spent: at the caps where reports chose the
    cohorts, because numbers that follow from outputs prove less.

    Args:
        plan: what was promised and planned.
        draws: draws of each client as the ledger counts them.
        reports: reports of each client as the ledger counts them; none by default.
        later: what was paid after the plan was made.
        method: the accountant that certifies what they spent.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(ids=["strict", "open"], sizes=[500, 500],
        ...                                  epsilon=[0.2, 4], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=10, cohort_size=2, batch_size=50), seed=1)
        >>> [point.name for point in client_points(plan, plan.counts)]
        ['strict', 'open']
    """
    known = ~np.isnan(plan.noise_multipliers) | (draws == 0)
    everyone = np.arange(len(plan.population))
    counted = np.where(known, draws, 0)
    asked = np.zeros_like(counted) if reports is None else reports
    receipts = make_receipts(
        plan, counted, later=later, clients=everyone, method=method, reports=asked
    )
    for k in np.flatnonzero(~known).tolist():
        # A draw that the plan knows no noise for spends without bound.
        receipts[k] = replace(receipts[k], certified_epsilon=math.inf)
    return _points(plan.participation, plan, draws, asked, receipts)


@singledispatch
def _points(
    participation: Participation,
    plan: Plan,
    draws: IntArray,
    reports: IntArray,
    receipts: Sequence[Receipt],
) -> list[ClientPoint]:
    """Points of clients with caps."""
    total = max(int(draws.sum()), 1)
    return [
        _point(
            plan,
            k,
            int(draws[k]),
            receipt,
            sentence=_sentence(plan, k, int(draws[k]), int(reports[k]), receipt.certified_epsilon),
            probability=int(draws[k]) / total,
            planned_draws=int(plan.counts[k]),
        )
        for k, receipt in enumerate(receipts)
    ]


@_points.register(FixedCohorts)
def _(
    participation: FixedCohorts,
    plan: Plan,
    draws: IntArray,
    reports: IntArray,
    receipts: Sequence[Receipt],
) -> list[ClientPoint]:
    paper, tight = papers_noise(plan) / plan.batch_sizes, _tight_std(plan)
    return [
        _point(
            plan,
            k,
            int(draws[k]),
            receipts[k],
            sentence=told.text(),
            probability=told.numbers["probability"],
            planned_draws=told.numbers["draws"],
            paper_std=_known(paper[k]),
            tight_std=_known(tight[k]),
        )
        for k, told in enumerate(explain_clients(plan, range(len(receipts))))
    ]


def _point(
    plan: Plan, k: int, draws: int, receipt: Receipt, sentence: str, **told: Any
) -> ClientPoint:
    """One client of any plan; ``told`` is what differs by the kind of plan."""
    people, public, whole = plan.population, receipt.public, receipt.in_all()
    spent, promised, trust = whole.certified_epsilon, whole.promised_epsilon, whole.trust or {}
    charged = receipt.charged_epsilon
    if receipt.charged is not None:
        sentence += (
            f"\nAll this is about the training. It promised epsilon {promised:.4g} in all, and "
            f"{charged:.4g} of that was paid beside it."
        )
    return ClientPoint(
        name=people.ids[k],
        size=int(people.sizes[k]),
        public=public,
        sentence=sentence,
        epsilon=None if public else promised,
        delta=None if public else whole.delta,
        unbiased=float(people.unbiased[k]),
        draws=draws,
        steps=draws * plan.training.local_steps,
        batch_size=int(plan.batch_sizes[k]),
        sampling_rate=float(plan.sampling_rates[k]),
        noise_multiplier=_known(plan.noise_multipliers[k]),
        noise_std=_known(plan.noise_multipliers[k] / plan.batch_sizes[k]),
        spent=None if public else spent,
        share=None if public or spent is None or not promised else spent / promised,
        charged=charged,
        weight=trust.get("weight"),
        own_noise=trust.get("share"),
        alone=None if public else trust.get("alone_epsilon"),
        **told,
    )


def _tight_std(plan: Plan) -> FloatArray:
    """Noise on the mean gradient by the tight accountant; NaN where there is none."""
    found = np.full(len(plan.population), np.nan)
    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    if 0 < held.size <= _MOST_CALIBRATED:
        left = left_population(plan.population, plan.past.segments)
        z = calibrate_noise(
            epsilon=left.epsilon[held],
            delta=plan.population.delta[held],
            sampling_rate=plan.sampling_rates[held],
            steps=plan.steps[held],
            **plan.contract.sampling(plan.training.local_steps),
        )
        found[held] = z / plan.batch_sizes[held]
    return found


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
        words = f"{name} with {records}. They are selected {heard:.3g} times as often as by size."
    else:
        budgets = [p.epsilon for p in cell if p.epsilon is not None]
        name = f"{count:,} clients, ε {min(budgets):.3g} to {max(budgets):.3g}, {records}"
        most = max(spent, default=0.0)
        words = (
            f"{name}. They are selected {heard:.3g} times as often as by size; none has spent more "
            f"than {most:.2%} of its budget."
        )
    means: dict[str, Any] = {field: _mean(cell, field) for field in _AVERAGED}
    # The worst, not the mean: a broken promise must not vanish in a group.
    share = max(spent) if spent else None
    return replace(first, name=name, clients=count, sentence=words, share=share, **means)


def _mean(cell: list[ClientPoint], field: str) -> float | None:
    values = [getattr(point, field) for point in cell]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _sentence(plan: Plan, k: int, draws: int, reports: int, spent: float | None) -> str:
    told = explain_client(plan, plan.population.ids[k]).numbers
    times = f"It was drawn {often(draws)}, at most {told['draw_cap']} allowed"
    times += plan.reports.made_words(k, reports)
    if told["public"]:
        spending = "It adds no noise."
    elif spent is None:
        spending = "Its reports were raw, so no epsilon bounds what they told."
    else:
        spending = (
            f"Its noise multiplier is {told['noise_multiplier']:.4g}, made for the caps; it is "
            f"certified to have spent at most epsilon {spent:.4g} of {told['epsilon']:.4g}."
        )
    promised = "is public"
    if not told["public"]:
        promised = f"promised epsilon {told['epsilon']:.4g} at delta {told['delta']:.3g}"
    return (
        f"{told['client']} holds {told['size']:,} {plan.contract.unit.several} and {promised}.\n"
        f"{times}; {plan.rule} chose the cohorts during the training.\n{spending}"
    )
