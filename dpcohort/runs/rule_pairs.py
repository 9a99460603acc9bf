# SPDX-License-Identifier: Apache-2.0
"""Pairs of a selection and an aggregation rule: which there are, and which make no sense."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpcohort._validate import choice
from dpcohort.config import Config
from dpcohort.data import Dataset
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plan import Plan
from dpcohort.plugins import REGISTRIES, is_named_function
from dpcohort.runs.aggregation_record import aggregation_for
from dpcohort.runs.config_text import toml_text
from dpcohort.runs.configured import configured_job
from dpcohort.runs.configured_plan import configured_data
from dpcohort.runs.job import Job
from dpcohort.text_files import parse_toml

__all__ = ["RuleChoice", "RulePair", "SkippedPair", "chosen_rules", "rule_pairs"]

_CHOICE = re.compile(r"([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)")


@dataclass(frozen=True, kw_only=True)
class RuleChoice:
    """A rule with the settings it was asked for with.

    Attributes:
        section: ``selection`` or ``aggregation``, where it stands in a configuration.
        name: of the rule.
        settings: given with it; a configuration's own are used where it names the same rule.
        label: as it was written.
        asked: by name, so that it is refused, not skipped, where it cannot be used.
    """

    section: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    asked: bool = True

    @property
    def changes(self) -> list[str]:
        """The changes to a configuration that ask for this rule."""
        given = {"rule": self.name, **self.settings}
        return [f"{self.section}.{key}={json.dumps(value)}" for key, value in given.items()]


@dataclass(frozen=True, kw_only=True, eq=False)
class RulePair:
    """A pair that can be trained, with a job for each seed."""

    selection: RuleChoice
    aggregation: RuleChoice
    jobs: list[Job]

    @property
    def name(self) -> str:
        """Both rules."""
        return f"{self.selection.label}, {self.aggregation.label}"


@dataclass(frozen=True, kw_only=True)
class SkippedPair:
    """A pair that is not trained, and why."""

    selection: str
    aggregation: str
    reason: str


def chosen_rules(section: str, text: str) -> list[RuleChoice]:
    """The rules of a list such as ``unbiased, threshold(threshold=2)``; ``all`` are all there are.

    Raises:
        InputError: one of them does not exist, or the list cannot be read.

    Example:
        >>> [rule.name for rule in chosen_rules("selection", "uniform, threshold(threshold=2)")]
        ['uniform', 'threshold']
        >>> chosen_rules("aggregation", "meen")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: aggregation = 'meen' is not allowed: ... Did you mean 'mean'?
    """
    kinds = ["selection", "adaptive"] if section == "selection" else ["aggregation"]
    known = [name for kind in kinds for name in REGISTRIES[kind].names]
    if text.strip() == "all":
        return [RuleChoice(section=section, name=name, label=name, asked=False) for name in known]
    if not text.strip() or _CHOICE.sub("", text).strip():
        raise InputError(
            section, given=text, allowed="rules like mean,trimmed-mean(trim=0.2), or all"
        )
    found = []
    for name, inside in _CHOICE.findall(text):
        if not is_named_function(name.strip()):
            choice(section, name.strip(), [*known, "all"])
        settings = _settings(section, inside)
        label = name.strip() + (f"({inside.strip()})" if settings else "")
        found.append(RuleChoice(section=section, name=name.strip(), settings=settings, label=label))
    return found


def rule_pairs(
    config: Config,
    *,
    selections: Sequence[RuleChoice],
    aggregations: Sequence[RuleChoice],
    seeds: int = 3,
    device: str | None = None,
    data: Dataset | None = None,
) -> tuple[list[RulePair], list[SkippedPair]]:
    """Every pair, planned and checked, and the pairs that cannot be or make no sense.

    Nothing is trained. A rule is planned once for all its pairs.

    Raises:
        InputError: a rule that was asked for by name cannot be used, or no pair is left.
    """
    for rule in (*selections, *aggregations):
        if rule.asked:
            config.with_overrides(rule.changes)
    dataset = configured_data(config) if data is None else data
    pairs: list[RulePair] = []
    skipped: list[SkippedPair] = []
    # Of rules that turn out to be the same, the well-known one is kept.
    known = (config.rule, "unbiased")
    for selection in sorted(selections, key=lambda rule: not rule.asked and rule.name not in known):
        try:
            planned = config.with_overrides([*selection.changes, "aggregation.rule=mean"])
            jobs = [
                configured_job(planned, data=dataset, shift=i, device=device) for i in range(seeds)
            ]
        except InputError as error:
            if selection.asked:
                raise
            reason = _reason(error)
            skipped += [_skip(selection, aggregation, reason) for aggregation in aggregations]
            continue
        twin = next((pair for pair in pairs if _draw_alike(pair.jobs, jobs)), None)
        if twin is not None and not selection.asked:
            reason = f"with these settings it is {twin.selection.label}"
            skipped += [_skip(selection, aggregation, reason) for aggregation in aggregations]
            continue
        for aggregation in aggregations:
            try:
                own = [_with(job, config, selection, aggregation) for job in jobs]
            except InputError as error:
                skipped.append(_skip(selection, aggregation, _reason(error)))
                continue
            pairs.append(RulePair(selection=selection, aggregation=aggregation, jobs=own))
    if not pairs:
        why = skipped[0].reason if skipped else "no rules are given"
        raise InputError.because(f"no pair of rules can be trained: {why}")
    return pairs, skipped


def _with(job: Job, config: Config, selection: RuleChoice, aggregation: RuleChoice) -> Job:
    """The same training with another aggregation.

    Raises:
        InputError: the two do not go together.
    """
    asked = config.with_overrides([*selection.changes, *aggregation.changes])
    name, settings = asked.aggregation
    rule = aggregation_for(job.plan, name, settings)
    objection = getattr(rule, "objection", None) if isinstance(job.plan, Plan) else None
    if objection is not None and (words := objection(job.plan)):
        raise InputError.because(str(words))
    label = f"{selection.label}, {aggregation.label}"
    return replace(job, aggregation=rule, label=label, config=toml_text(asked.values))


def _draw_alike(some: Sequence[Job], others: Sequence[Job]) -> bool:
    """Whether plans draw the same clients with the same noise, seed by seed."""
    for one, other in zip(some, others, strict=True):
        if not isinstance(one.plan, Plan) or not isinstance(other.plan, Plan):
            return False
        noise = (one.plan.noise_multipliers, other.plan.noise_multipliers)
        if not np.array_equal(one.plan.schedule.cohorts, other.plan.schedule.cohorts):
            return False
        if not np.array_equal(*noise, equal_nan=True):
            return False
    return True


def _skip(selection: RuleChoice, aggregation: RuleChoice, reason: str) -> SkippedPair:
    return SkippedPair(selection=selection.label, aggregation=aggregation.label, reason=reason)


def _reason(error: InputError) -> str:
    """What is wrong, without the file and the changes that led to it."""
    words = str(error)
    if isinstance(error, FileFormatError):
        words = words.removeprefix(error.path).partition(": ")[2]
    return re.sub(r"^(selection|aggregation): ", "", " ".join(words.split()))


def _settings(section: str, inside: str) -> dict[str, Any]:
    if not inside.strip():
        return {}
    try:
        # An inline table is just such a list.
        return dict(parse_toml(f"found = {{ {inside} }}")["found"])
    except ValueError:
        raise InputError(
            section, given=inside, allowed="settings like trim=0.2 between the parentheses"
        ) from None
