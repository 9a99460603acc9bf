# SPDX-License-Identifier: Apache-2.0
"""The first sentence of the report: what was found, at which budgets, and whether it is proved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpcohort.report.html.accuracy import AccuracyCurve, baseline_of, compared
from dpcohort.report.html.sources import Group, ReadRun
from dpcohort.runs.comparison import Comparison

__all__ = ["Headline", "comparison_words", "headline_of", "same_budgets", "verdict_of"]

Tone = Literal["good", "plain", "bad"]


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The sentence, and how it is to be taken.

    Attributes:
        result: what training gave.
        verdict: whether the promises hold.
        tone: ``good`` if every promise was verified, ``bad`` if one was not, else ``plain``.
    """

    result: str
    verdict: str
    tone: Tone

    @property
    def sentence(self) -> str:
        """Both parts as one sentence."""
        return f"{self.result}; {self.verdict}."


def headline_of(groups: Sequence[Group], curves: Sequence[AccuracyCurve], best: int) -> Headline:
    """The headline for a run, seeds of one run, or several groups.

    Args:
        groups: the groups.
        curves: their curves.
        best: the group that is spoken about.
    """
    verdict, tone = verdict_of([run for group in groups for run in group.runs])
    baseline = baseline_of(groups)
    if best != baseline:
        comparison = compared(groups[best], groups[baseline])
        if comparison is not None:
            budgets = (
                " at the same budgets"
                if same_budgets(groups[best], groups[baseline])
                else " with DIFFERENT budgets, so the difference is not that of the rule alone"
            )
            return Headline(
                result=comparison_words(comparison) + budgets, verdict=verdict, tone=tone
            )
    return Headline(
        result=_alone(groups[best], curves[best]),
        verdict=verdict,
        tone=tone,
    )


def _alone(group: Group, curve: AccuracyCurve) -> str:
    plan = group.runs[0].plan
    clients = "" if plan is None else f" with {_count(len(plan.population), 'client')}"
    if not curve.mean:
        return f"{group.name}{clients}: no test result yet"
    seeds = f" (95 % CI {_end(curve.low)} to {_end(curve.high)}, {curve.seeds} seeds)"
    spread = seeds if curve.seeds > 1 else " (one seed)"
    return (
        f"{group.name} reaches {curve.mean[-1]:.1f} % test accuracy{spread} after "
        f"{_count(curve.rounds[-1], 'round')}{clients}"
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _end(values: Sequence[float | None]) -> str:
    return "-" if values[-1] is None else f"{values[-1]:.1f}"


def comparison_words(comparison: Comparison) -> str:
    """A comparison as the beginning of a sentence.

    Example:
        >>> from dpcohort.runs.intervals import Interval
        >>> found = Interval(mean=31.2, low=28.0, high=34.4, count=5)
        >>> comparison_words(Comparison(name="privacy-aware", baseline="unbiased",
        ...                             seeds=(0, 1, 2, 3, 4), difference=found))
        'privacy-aware beats unbiased by 31.2 points (95 % CI 28.0 to 34.4, 5 seeds)'
    """
    found = comparison.difference
    ahead = found.mean >= 0
    if not math.isfinite(found.low):
        word = "above" if ahead else "below"
        return (
            f"{comparison.name} is {abs(found.mean):.1f} points {word} {comparison.baseline} with "
            "one seed, which says nothing about chance,"
        )
    ends = sorted((found.low, found.high)) if ahead else sorted((-found.low, -found.high))
    spread = f"(95 % CI {ends[0]:.1f} to {ends[1]:.1f}, {found.count} seeds)"
    if not found.excludes(0.0):
        return (
            f"no clear difference between {comparison.name} and {comparison.baseline}: "
            f"{found.mean:+.1f} points {spread}"
        )
    verb = "beats" if ahead else "falls behind"
    return (
        f"{comparison.name} {verb} {comparison.baseline} by {abs(found.mean):.1f} points {spread}"
    )


def same_budgets(group: Group, other: Group) -> bool:
    """Whether both had the same clients with the same sizes and budgets, seed by seed."""
    theirs = {run.seed: run.plan for run in other.runs}
    for run in group.runs:
        ours, paired = run.plan, theirs.get(run.seed)
        if run.seed not in theirs:
            continue
        if ours is None or paired is None:
            return False
        mine, other_clients = ours.population, paired.population
        same = list(mine.ids) == list(other_clients.ids) and all(
            np.array_equal(a, b, equal_nan=True)
            for a, b in (
                (mine.sizes.astype(np.float64), other_clients.sizes.astype(np.float64)),
                (mine.epsilon, other_clients.epsilon),
                (mine.delta, other_clients.delta),
            )
        )
        if not same:
            return False
    return True


def verdict_of(runs: Sequence[ReadRun]) -> tuple[str, Tone]:
    """Whether every promise of all runs was verified, in words."""
    unknown = sum(run.verification is None for run in runs)
    broken = sum(
        finding.kind != "note"
        for run in runs
        if run.verification is not None
        for finding in run.verification.findings
    )
    if broken:
        things = "finding" if broken == 1 else "findings"
        return f"NOT every promise could be confirmed ({broken} {things} below)", "bad"
    if unknown:
        return "the promises could NOT be verified (see below)", "bad"
    if any(problem.kind == "broken" for run in runs for problem in run.problems):
        return "NOT every file could be read as it was written (see below)", "bad"
    if any(run.problems for run in runs):
        return "every promise verified as far as the runs have come", "plain"
    return "every promise verified", "good"
