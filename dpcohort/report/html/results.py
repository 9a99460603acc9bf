# SPDX-License-Identifier: Apache-2.0
"""How good the models are, by round, class and seed; and the report's first sentence about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dpcohort.report.html.sources import Group, ReadRun
from dpcohort.runs.comparison import Comparison
from dpcohort.runs.evaluation import Interval, mean_interval

__all__ = [
    "AccuracyCurve",
    "Headline",
    "accuracy_curve",
    "baseline_of",
    "class_accuracy",
    "compared",
    "comparison_words",
    "headline_of",
    "same_budgets",
    "verdict_of",
]


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
    seeds = f" (95 % CI {_last(curve.low)} to {_last(curve.high)}, {curve.seeds} seeds)"
    spread = seeds if curve.seeds > 1 else " (one seed)"
    return (
        f"{group.name} reaches {curve.mean[-1]:.1f} % test accuracy{spread} after "
        f"{_count(curve.rounds[-1], 'round')}{clients}"
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _last(values: Sequence[float | None]) -> str:
    return "-" if values[-1] is None else f"{values[-1]:.1f}"


def comparison_words(comparison: Comparison) -> str:
    """A comparison as the beginning of a sentence.

    Example:
        >>> from dpcohort.runs.evaluation import Interval
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


@dataclass(frozen=True, kw_only=True)
class AccuracyCurve:
    """Mean test accuracy of a group of runs, in percent, with its interval.

    Attributes:
        name: of the group.
        rounds: rounds done at each look that all its runs had.
        mean: over the seeds.
        low: lower end of the 95 % interval; None from one seed.
        high: upper end.
        seeds: how many runs.
        private: the noise was not drawn from a seed.
    """

    name: str
    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    seeds: int
    private: bool

    @property
    def last(self) -> str:
        """The last point in words."""
        if not self.mean:
            return "no test result"
        words = f"{self.mean[-1]:.1f} %"
        low, high = self.low[-1], self.high[-1]
        return words if low is None or high is None else f"{words} ({low:.1f} to {high:.1f})"


def accuracy_curve(group: Group) -> AccuracyCurve:
    """The curve of a group, at the rounds at which all its runs were tested."""
    curves = [_points(run) for run in group.runs if run.test is not None]
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    found = [mean_interval([100 * curve[at] for curve in curves]) for at in shared]
    return AccuracyCurve(
        name=group.name,
        rounds=tuple(shared),
        mean=tuple(interval.mean for interval in found),
        low=tuple(_end(interval.low) for interval in found),
        high=tuple(_end(interval.high) for interval in found),
        seeds=len(curves),
        private=all(run.is_private is True for run in group.runs),
    )


def _points(run: ReadRun) -> dict[int, float]:
    return {
        line.round + 1: found.accuracy
        for line in run.history
        if (found := line.test_average or line.test) is not None
    }


def _end(value: float) -> float | None:
    return min(max(value, 0.0), 100.0) if math.isfinite(value) else None


def baseline_of(groups: Sequence[Group]) -> int:
    """Which group the others are judged against: the unbiased one, or else the first."""
    plain = [
        k
        for k, group in enumerate(groups)
        if (plan := group.runs[0].plan) is not None and plan.selection.rule == "unbiased"
    ]
    return plain[0] if len(plain) == 1 else 0


def compared(group: Group, baseline: Group) -> Comparison | None:
    """Paired differences over the seeds both have; None where there is nothing to pair."""
    if group.runs[0].data_name != baseline.runs[0].data_name:
        return None
    ours = {run.seed: run.test for run in group.runs if run.seed is not None}
    theirs = {run.seed: run.test for run in baseline.runs if run.seed is not None}
    points = {
        seed: 100 * (mine.accuracy - other.accuracy)
        for seed, mine in ours.items()
        if mine is not None and (other := theirs.get(seed)) is not None
    }
    if not points:
        return None
    seeds = tuple(sorted(points))
    return Comparison(
        name=group.name,
        baseline=baseline.name,
        seeds=seeds,
        difference=mean_interval([points[seed] for seed in seeds]),
    )


def class_accuracy(group: Group) -> list[dict[str, Any]]:
    """Accuracy within each class of the test set, over the seeds; in percent."""
    rows = [run.test.class_accuracy for run in group.runs if run.test is not None]
    if not rows or len({len(row) for row in rows}) != 1:
        return []
    columns = np.array(rows, dtype=np.float64).T
    found = []
    for number, column in enumerate(columns):
        if np.isfinite(column).all():
            interval: Interval = mean_interval((100 * column).tolist())
            found.append(
                {
                    "class": number,
                    "mean": interval.mean,
                    "low": _end(interval.low),
                    "high": _end(interval.high),
                }
            )
    return found
