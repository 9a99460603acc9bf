# SPDX-License-Identifier: Apache-2.0
"""Two groups of runs compared seed by seed, ending in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcohort.errors import InputError
from dpcohort.runs.evaluation import Interval, mean_interval
from dpcohort.runs.folder import RunFolder
from dpcohort.runs.run import Run

__all__ = ["Comparison", "compare_runs", "load_group"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The test accuracy of one group of runs against another's, with the same seeds.

    Attributes:
        name: of the group that is judged.
        baseline: of the group it is judged against.
        seeds: those that both have.
        difference: accuracy of the one minus that of the other, in percentage points, paired by
            seed.
    """

    name: str
    baseline: str
    seeds: tuple[int, ...]
    difference: Interval

    @property
    def sentence(self) -> str:
        """What was found, in words.

        Example:
            >>> found = Interval(mean=12.31, low=9.8, high=14.86, count=5)
            >>> Comparison(name="privacy-aware", baseline="unbiased", seeds=(0, 1, 2, 3, 4),
            ...            difference=found).sentence
            'privacy-aware better than unbiased by 12.3 points, 95 % CI 9.8 to 14.9 (5 seeds).'
        """
        found = self.difference
        seeds = f"{found.count} seed{'s' if found.count != 1 else ''}"
        if found.mean == 0 and (found.low == found.high or not math.isfinite(found.low)):
            return f"{self.name} and {self.baseline} have the same accuracy ({seeds})."
        word = "better" if found.mean >= 0 else "worse"
        sign = 1 if found.mean >= 0 else -1
        ends = sorted((sign * found.low, sign * found.high))
        points = f"{abs(found.mean):.1f}" if abs(found.mean) >= 0.05 else "less than 0.1"
        head = f"{self.name} {word} than {self.baseline} by {points} points"
        if not math.isfinite(found.low):
            return f"{head} with one seed; that says nothing about chance. Use --seeds 5."
        interval = f"{found.confidence:.0%} CI ".replace("%", " %")
        interval += f"{ends[0]:.1f} to {ends[1]:.1f} ({seeds})"
        if not found.excludes(0.0):
            return f"no clear difference: {head}, but the {interval} holds 0."
        return f"{head}, {interval}."

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "baseline": self.baseline,
            "seeds": list(self.seeds),
            "difference_points": self.difference.to_dict(),
            "sentence": self.sentence,
        }


def compare_runs(
    runs: Sequence[Run],
    baseline: Sequence[Run],
    *,
    names: tuple[str, str] = ("", ""),
    confidence: float = 0.95,
) -> Comparison:
    """Paired differences of test accuracy over the seeds that both groups have.

    Args:
        runs: the group that is judged, one run a seed.
        baseline: the group it is judged against.
        names: of both; by default their labels.
        confidence: of the interval.

    Raises:
        InputError: they share no seed, were tested on different data, or a seed occurs twice.
    """
    ours, theirs = _by_seed(runs), _by_seed(baseline)
    seeds = sorted(ours.keys() & theirs.keys())
    name = names[0] or str(runs[0].settings["label"])
    other = names[1] or str(baseline[0].settings["label"])
    if not seeds:
        raise InputError.because(
            f"{name} and {other} share no seed ({sorted(ours)} and {sorted(theirs)}). "
            "Train both with the same seeds."
        )
    for seed in seeds:
        if ours[seed].settings["data"] != theirs[seed].settings["data"]:
            raise InputError.because(
                f"{name} and {other} were tested on different data "
                f"({ours[seed].settings['data']['name']} and "
                f"{theirs[seed].settings['data']['name']}); there is nothing to compare."
            )
    points = [100 * (ours[s].test_accuracy - theirs[s].test_accuracy) for s in seeds]
    return Comparison(
        name=name,
        baseline=other,
        seeds=tuple(seeds),
        difference=mean_interval(points, confidence=confidence),
    )


def load_group(path: str | Path) -> list[Run]:
    """The run in a folder, or all the runs (one a seed) in the folders in it.

    Raises:
        DataMissingError: there is none.
        InputError: one of them is not finished.
    """
    runs = [Run.load(folder.path) for folder in RunFolder.find_all(path)]
    for run in runs:
        if not run.is_finished:
            raise InputError.because(
                f"{run.path} is not finished ({run.rounds_done} of {run.plan.training.rounds} "
                "rounds). Let it go on with --resume."
            )
    return runs


def _by_seed(runs: Sequence[Run]) -> dict[int, Run]:
    if not runs:
        raise InputError("runs", given=[], allowed="at least one run")
    found: dict[int, Run] = {}
    for run in runs:
        if run.seed in found:
            raise InputError("runs", given=f"seed {run.seed} twice", allowed="one run a seed")
        found[run.seed] = run
    return found
