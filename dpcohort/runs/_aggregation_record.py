# SPDX-License-Identifier: Apache-2.0
"""Aggregation of a run by its name or as an object, and what ``run.json`` has of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np

from dpcohort.aggregation import AggregationRule, Mean, for_plan, plan_column
from dpcohort.errors import InputError
from dpcohort.plan import Plan
from dpcohort.plugins import FILLED, RULES, find_rule, full_name

#: What stands for a column that is the plan's own.
PLANS_OWN = "the plan's"


def aggregation_for(
    plan: Plan, aggregation: str | AggregationRule, settings: Mapping[str, Any] | None = None
) -> AggregationRule:
    """The rule by its name, with what the plan knows filled in; a rule itself as it is.

    Raises:
        InputError: there is no such rule, it does not go with this plan, or it is no rule.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=4, cohort_size=2, batch_size=20), seed=1)
        >>> aggregation_for(plan, "trimmed-mean", {"trim": 0.2})
        TrimmedMean(trim=0.2)
    """
    if isinstance(aggregation, str):
        made = for_plan(aggregation, plan, **(settings or {}))
    else:
        made = aggregation
    if isinstance(made, type) or not callable(getattr(made, "combine", None)):
        raise InputError(
            "aggregation",
            given=aggregation,
            allowed="the name of a rule, or an object with combine(updates, cohort)",
            next_step="See: dpcohort rules",
        )
    if type(made) is not Mean:
        plan.noise.refuse_single_updates(
            f"the aggregation {getattr(made, 'name', type(made).__name__)} needs single updates",
            "the aggregation mean",
        )
    return made


def described_aggregation(rule: AggregationRule, plan: Plan) -> dict[str, Any] | None:
    """Name and settings in plain values; None for the plain mean, which every run has unless told.

    Columns that are the plan's are not repeated; others are told by their hash.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=4, cohort_size=2, batch_size=20), seed=1)
        >>> described_aggregation(aggregation_for(plan, "size-weighted"), plan)
        {'rule': 'size-weighted', 'settings': {'sizes': "the plan's"}}
    """
    if type(rule) is Mean:
        return None
    name, thing = getattr(rule, "name", None), cast("Any", rule)
    known = isinstance(name, str) and name in RULES["aggregation"]
    is_ours = known and find_rule("aggregation", str(name)) is type(rule)
    settings = {}
    if is_dataclass(thing):
        settings = {f.name: _plain(f.name, getattr(thing, f.name), plan) for f in fields(thing)}
    return {"rule": name if is_ours else full_name(rule), "settings": settings}


def _plain(field: str, value: Any, plan: Plan) -> Any:
    if not isinstance(value, np.ndarray):
        return json.loads(json.dumps(value, default=repr))
    if field in FILLED["aggregation"]:
        planned = np.asarray(plan_column(field, plan), dtype=value.dtype)
        if np.array_equal(planned, value, equal_nan=True):
            return PLANS_OWN
    return "sha256:" + hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
