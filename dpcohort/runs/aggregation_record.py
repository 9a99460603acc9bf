# SPDX-License-Identifier: Apache-2.0
"""The aggregation of a run: made for its plan, written into ``run.json``, checked afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort.aggregation import AggregationRule, Mean, for_plan, plan_column
from dpcohort.errors import DpcohortError, InputError
from dpcohort.limits import LARGEST_CONFIG, read_bounded
from dpcohort.plan import Plan
from dpcohort.plugins import REGISTRIES
from dpcohort.text_files import parse_toml

__all__ = ["aggregation_for", "aggregation_problems", "described_aggregation"]

#: What stands for a column that is the plan's own.
_PLANS = "the plan's"
_REGISTRY = REGISTRIES["aggregation"]


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
    return made


def described_aggregation(rule: AggregationRule, plan: Plan) -> dict[str, Any] | None:
    """Name and settings in plain values; None for the plain mean, which every run has unless told.

    Columns that are the plan's are not repeated; others are told by their hash.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=4, cohort_size=2, batch_size=20), seed=1)
        >>> described_aggregation(for_plan("size-weighted", plan), plan)
        {'rule': 'size-weighted', 'settings': {'sizes': "the plan's"}}
    """
    if type(rule) is Mean:
        return None
    name = getattr(rule, "name", None)
    home = f"{type(rule).__module__}:{type(rule).__qualname__}"
    known = isinstance(name, str) and name in _REGISTRY.built_in
    is_ours = known and _REGISTRY.find(str(name)) is type(rule)
    values: dict[str, Any] = {}
    thing: Any = rule
    if is_dataclass(thing):
        values = {f.name: getattr(thing, f.name) for f in fields(thing)}
    settings = {key: _plain(key, value, plan) for key, value in values.items()}
    return {"rule": name if is_ours else home, "settings": settings}


def aggregation_problems(record: Any, plan: Plan, config: Path) -> list[tuple[str, bool]]:
    """What is wrong with the aggregation that ``run.json`` tells of.

    Args:
        record: as ``described_aggregation`` gave it.
        plan: of the run.
        config: the run's configuration; it need not exist.

    Returns:
        Words, and whether they speak against the run; otherwise they are a note.
    """
    if record is not None and (not isinstance(record, dict) or "rule" not in record):
        return [(f"its aggregation is {record!r}, which no run writes.", True)]
    name = "mean" if record is None else str(record["rule"])
    problems = []
    asked = _asked_for(config)
    if asked is not None and ":" not in asked and ":" not in name and asked != name:
        problems.append((f"it tells of the aggregation {name}, config.toml of {asked}.", True))
    if name not in _REGISTRY.built_in:
        words = f"the aggregation {name} is not of this package; it spends no privacy."
        return [*problems, (words, False)]
    settings = {} if record is None else record.get("settings", {})
    given = {k: v for k, v in dict(settings).items() if not _stands_for_a_column(v)}
    try:
        if not any(str(v).startswith("sha256:") for v in dict(settings).values()):
            aggregation_for(plan, name, given)
    except DpcohortError as error:
        problems.append((f"its aggregation cannot be that of this plan: {error}", True))
    return problems


def _asked_for(config: Path) -> str | None:
    try:
        table = parse_toml(read_bounded(config, LARGEST_CONFIG).decode()).get("aggregation", {})
    except (OSError, ValueError):
        return None
    return str(table.get("rule", "mean")) if isinstance(table, dict) else None


def _stands_for_a_column(value: Any) -> bool:
    return value == _PLANS or str(value).startswith("sha256:")


def _plain(field: str, value: Any, plan: Plan) -> Any:
    if not isinstance(value, np.ndarray):
        return json.loads(json.dumps(value, default=repr))
    if field in _REGISTRY.filled:
        planned = np.asarray(plan_column(field, plan), dtype=value.dtype)
        if np.array_equal(planned, value, equal_nan=True):
            return _PLANS
    return "sha256:" + hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
