# SPDX-License-Identifier: Apache-2.0
"""What a number of draws has cost each client, by an accountant that did not choose the noise."""

from __future__ import annotations

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting.certify import certify_epsilon
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.plan_file import AnyPlan
from dpcohort.errors import InputError

__all__ = ["certified_spending"]

#: Above this many different (noise, rate, steps) the fast bound alone is computed.
_MOST_SECOND_OPINIONS = 200


def certified_spending(
    plan: AnyPlan,
    draws: IntArray,
    *,
    clients: IntArray | None = None,
    method: str = "auto",
    reports: IntArray | None = None,
) -> FloatArray:
    """Upper bound on the epsilon each client has spent, at its delta.

    Every method is a valid upper bound. Where one of them is above what was promised only because
    it rounds up, the smaller of two bounds is as valid and is taken.

    Args:
        plan: noise, rates, deltas and the contract.
        draws: how often each client was really drawn, by position.
        clients: positions to look at; all by default.
        method: as in ``certify_epsilon``; ``auto`` uses the fast one for very many clients.
        reports: of each client, where cohorts are chosen from reports.

    Returns:
        One number a client: 0 for one that was never drawn, NaN for a public one, and for one
        whose raw reports no number can bound.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0)
        >>> spent = certified_spending(plan, plan.schedule.counts)
        >>> bool((spent <= people.epsilon).all())
        True
    """
    chosen = np.arange(len(plan.population)) if clients is None else clients
    if isinstance(plan, AdaptivePlan):
        return _with_reports(plan, draws, reports, chosen, method)
    counted = np.asarray(draws, dtype=np.int64)[chosen]
    public = plan.population.public[chosen]
    spent = np.where(public, np.nan, 0.0)
    held = np.flatnonzero((counted > 0) & ~public)
    if not held.size:
        return spent
    at = chosen[held]
    noise = plan.noise_multipliers[at]
    if np.isnan(noise).any():
        worst = plan.population.ids[int(at[np.isnan(noise)][0])]
        raise InputError.because(
            f"{worst!r} was drawn but the plan never draws it: there is no noise to account for."
        )
    steps = counted[held] * plan.training.local_steps
    delta, rates = plan.population.delta[at], plan.sampling_rates[at]
    different = len({*zip(noise.tolist(), rates.tolist(), steps.tolist(), strict=True)})
    if method == "auto" and different > _MOST_SECOND_OPINIONS:
        method = "pld"

    def certified(mask: slice | BoolArray, how: str) -> FloatArray:
        return np.asarray(
            certify_epsilon(
                noise_multiplier=noise[mask],
                delta=delta[mask],
                sampling_rate=rates[mask],
                steps=steps[mask],
                sampler=plan.contract.sampler,
                neighbours=plan.contract.neighbours,
                method=how,
            )
        )

    found = certified(slice(None), method)
    over = found > plan.population.epsilon[at]
    if method != "pld" and over.any():
        found[over] = np.minimum(found[over], certified(over, "pld"))
    spent[held] = found
    return spent


def _with_reports(
    plan: AdaptivePlan, draws: IntArray, reports: IntArray | None, chosen: IntArray, method: str
) -> FloatArray:
    """Draws and reports of an adaptive plan, composed; at the caps where outputs chose them."""
    asked = np.zeros(len(plan.population), dtype=np.int64) if reports is None else reports
    if method == "auto" and chosen.size > _MOST_SECOND_OPINIONS:
        method = "pld"
    looked_at = np.zeros(len(plan.population), dtype=np.bool_)
    looked_at[chosen] = True
    spent = plan.spent_epsilon(
        *plan.counts_to_certify(np.where(looked_at, draws, 0), np.where(looked_at, asked, 0)),
        method=method,
    )
    if plan.has_raw_reports:
        spent[asked > 0] = np.nan
    return np.asarray(spent[chosen])
