# SPDX-License-Identifier: Apache-2.0
"""How good the models are: curves over the rounds, results by class, differences by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcohort.report.html.sources import Group, ReadRun
from dpcohort.runs.comparison import Comparison
from dpcohort.runs.intervals import Interval, mean_interval

__all__ = ["AccuracyCurve", "accuracy_curve", "baseline_of", "class_accuracy", "compared"]


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
