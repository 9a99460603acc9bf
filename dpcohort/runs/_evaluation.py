# SPDX-License-Identifier: Apache-2.0
"""How good the model is, and who was selected in making it.

From what is public: results on the public test set, budgets, sizes, cohorts. How well the model
serves a client depends on that client's labels, which are private: nothing here asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from dpcohort._validate import IntArray, number, whole_number
from dpcohort.errors import InputError
from dpcohort.metrics import METRICS, Check, check_together
from dpcohort.plain_text import html_table
from dpcohort.plan import Plan
from dpcohort.runs._folder import find_runs
from dpcohort.runs._run import Run


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and where it may lie.

    Attributes:
        mean: of the values.
        low: lower end; -inf from a single value.
        high: upper end; inf from a single value.
        count: number of values.
        confidence: of the interval.
    """

    mean: float
    low: float
    high: float
    count: int
    confidence: float = 0.95

    @property
    def half_width(self) -> float:
        """Distance from the mean to either end."""
        return (self.high - self.low) / 2

    def within(self, low: float, high: float) -> Interval:
        """With its ends within a range; a single value's stay infinite."""
        if self.count == 1:
            return self
        return replace(self, low=max(self.low, low), high=min(self.high, high))

    def excludes(self, value: float) -> bool:
        """Whether the value is outside."""
        return not self.low <= value <= self.high


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """The mean of independent values and its t-interval.

    One value has a mean and no interval: its ends are infinite, so that nothing is concluded.

    Example:
        >>> found = mean_interval([1.0, 2.0, 3.0])
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
        (2.0, -0.484, 4.484)
    """
    number("confidence", confidence, above=0, below=1)
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise InputError("values", given=list(values), allowed="one or more finite numbers")
    mean = float(array.mean())
    half = math.inf
    if array.size > 1:
        quantile = float(stdtrit(array.size - 1, (1 + confidence) / 2))
        half = quantile * float(array.std(ddof=1)) / math.sqrt(array.size)
    return Interval(
        mean=mean, low=mean - half, high=mean + half, count=int(array.size), confidence=confidence
    )


@dataclass(frozen=True, kw_only=True)
class SeedSummary:
    """Test results over seeds, with confidence intervals.

    Attributes:
        label: what the runs have in common.
        seeds: those of the runs.
        accuracy: on the public test set; None where no class is predicted.
        loss: the mean loss there; None if a run's is not finite.
        class_accuracy: accuracy within each class; None for a class without test records.
        metric: what the runs are judged by.
        score: of that metric; None if a run's is not finite.
    """

    label: str
    seeds: tuple[int, ...]
    accuracy: Interval | None
    loss: Interval | None
    class_accuracy: tuple[Interval | None, ...]
    metric: str = "accuracy"
    score: Interval | None = None

    @property
    def worst_class(self) -> int | None:
        """The class the model serves worst; None without classes."""
        known = [(c.mean, i) for i, c in enumerate(self.class_accuracy) if c is not None]
        return min(known)[1] if known else None


def summarise_seeds(runs: Sequence[Run]) -> SeedSummary:
    """Test results of runs that differ only in their seed."""
    if not runs:
        raise InputError("runs", given=[], allowed="at least one run")
    tests = [run.test for run in runs]
    classes = np.array([test.class_accuracy for test in tests], dtype=np.float64)

    def over_seeds(values: Sequence[float], *, share: bool = True) -> Interval | None:
        if not np.isfinite(values).all():
            return None
        found = mean_interval(values)
        return found.within(0.0, 1.0) if share else found

    return SeedSummary(
        label=str(runs[0].settings["label"]),
        seeds=tuple(run.seed for run in runs),
        accuracy=over_seeds([test.accuracy for test in tests]),
        loss=over_seeds([test.loss for test in tests], share=False),
        class_accuracy=tuple(over_seeds(column.tolist()) for column in classes.T),
        metric=runs[0].metric.name,
        score=over_seeds([test.score for test in tests], share=runs[0].metric.is_share),
    )


@dataclass(frozen=True, kw_only=True)
class HeardGroup:
    """Clients with neighbouring budgets, and how much of the training was theirs.

    Attributes:
        name: ``decile 1`` (the strictest) to ``decile 10``, or ``public``.
        clients: how many.
        epsilon_low: smallest budget among them; None for public clients.
        epsilon_high: largest.
        record_share: their share of all records.
        draw_share: their share of all draws counted, each with its weight where noise is
            distributed.
        heard: draw share over record share; 1 is in proportion to their data.
        noise_std: root mean square of z / B over their draws: noise on the mean gradient over C.
    """

    name: str
    clients: int
    epsilon_low: float | None
    epsilon_high: float | None
    record_share: float
    draw_share: float
    heard: float
    noise_std: float


def who_was_heard(
    plan: Plan, draws: IntArray | None = None, *, groups: int = 10
) -> list[HeardGroup]:
    """Participation by budget, strictest first; public information only.

    Args:
        plan: sizes, budgets, noise.
        draws: draws of each client; by default all that the plan schedules.
        groups: how many groups of equally many clients.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[90] * 4, epsilon=[0.1, 0.5, 4, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=9), seed=0)
        >>> strict, loose = who_was_heard(plan, groups=2)
        >>> strict.heard < 1 < loose.heard
        True
    """
    whole_number("groups", groups, at_least=1)
    counted = plan.counts if draws is None else draws
    private = np.flatnonzero(~plan.population.public)
    order = private[np.argsort(plan.population.epsilon[private], kind="stable")]
    parts = [part for part in np.array_split(order, groups) if part.size]
    word = "decile" if groups == 10 else "group"
    found = [
        _heard(plan, part, counted, f"{word} {number}")
        for number, part in enumerate(parts, start=1)
    ]
    public = np.flatnonzero(plan.population.public)
    return [*found, _heard(plan, public, counted, "public")] if public.size else found


def _heard(plan: Plan, part: IntArray, draws: IntArray, name: str) -> HeardGroup:
    population = plan.population
    is_public = bool(population.public[part[0]])
    records = float(population.sizes[part].sum() / population.total_size)
    loud, levels = draws * plan.noise.weights, plan.noise.std_per_draw(plan.batch_sizes)[part]
    draw_share = float(loud[part].sum()) / max(1e-300, float(loud.sum()))
    times, squares = int(draws[part].sum()), float((draws[part] * levels**2).sum())
    epsilon = population.epsilon[part]
    return HeardGroup(
        name=name,
        clients=int(part.size),
        epsilon_low=None if is_public else float(epsilon.min()),
        epsilon_high=None if is_public else float(epsilon.max()),
        record_share=records,
        draw_share=draw_share,
        heard=draw_share / records,
        noise_std=float(np.sqrt(squares / times)) if times else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The test results of one group of runs against another's, with the same seeds.

    Attributes:
        name: of the group that is judged.
        baseline: of the group it is judged against.
        seeds: those that both have.
        difference: how much better the one is than the other, paired by seed: of an accuracy in
            percentage points, of other metrics in their unit.
        metric: what they are judged by.
        check: the judged group beside the best constant, where that is known.
    """

    name: str
    baseline: str
    seeds: tuple[int, ...]
    difference: Interval
    metric: str = "accuracy"
    check: Check | None = None

    @property
    def caveat(self) -> str:
        """That the judged group is not better than a constant; empty where it is."""
        if self.check is None or self.check.is_better:
            return ""
        return f"{self.name}: {self.check.sentence}"

    def __repr__(self) -> str:
        return f"Comparison({self.sentence})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        found, ends = self.difference, "none with one seed"
        if math.isfinite(found.low):
            ends = f"{found.low:+.1f} to {found.high:+.1f}"
        rows = {
            "difference": f"{found.mean:+.1f} points",
            f"{100 * found.confidence:.0f} % CI": ends,
            "seeds": ", ".join(map(str, self.seeds)),
            "in words": self.sentence,
        }
        return html_table(f"{self.name} against {self.baseline}", rows)

    @property
    def sentence(self) -> str:
        """What was found, in words; with the caveat where there is one."""
        return f"{self._difference} But {self.caveat}." if self.caveat else self._difference

    @property
    def _difference(self) -> str:
        """What was found, in words.

        Example:
            >>> found = Interval(mean=12.31, low=9.8, high=14.86, count=5)
            >>> Comparison(name="privacy-aware", baseline="unbiased", seeds=(0, 1, 2, 3, 4),
            ...            difference=found).sentence
            'privacy-aware better than unbiased by 12.3 points, 95 % CI 9.8 to 14.9 (5 seeds).'
        """
        found, metric = self.difference, METRICS[self.metric]
        seeds = f"{found.count} seed{'s' if found.count != 1 else ''}"
        if found.mean == 0 and (found.low == found.high or not math.isfinite(found.low)):
            return f"{self.name} and {self.baseline} have the same {metric.words} ({seeds})."
        word = "better" if found.mean >= 0 else "worse"
        sign = 1 if found.mean >= 0 else -1
        ends = sorted((sign * found.low, sign * found.high))
        points = metric.shown(abs(found.mean))
        if metric.is_share and abs(found.mean) < 0.05:
            points = "less than 0.1"
        head = f"{self.name} {word} than {self.baseline} by {points}{metric.unit}"
        if not math.isfinite(found.low):
            return f"{head} with one seed; that says nothing about chance. Use --seeds 5."
        interval = f"{found.confidence:.0%} CI ".replace("%", " %")
        interval += f"{metric.shown(ends[0])} to {metric.shown(ends[1])} ({seeds})"
        if not found.excludes(0.0):
            return f"no clear difference: {head}, but the {interval} holds 0."
        return f"{head}, {interval}."

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "baseline": self.baseline,
            "seeds": list(self.seeds),
            "difference_points": asdict(self.difference),
            **({} if self.metric == "accuracy" else {"metric": self.metric}),
            "sentence": self.sentence,
        }


def compare_runs(
    runs: Sequence[Run], baseline: Sequence[Run], *, names: tuple[str, str] = ("", "")
) -> Comparison:
    """Paired differences of the main test metric over the seeds that both groups have.

    Args:
        runs: the group that is judged, one run a seed.
        baseline: the group it is judged against.
        names: of both; by default their labels.

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
        if ours[seed].metric != theirs[seed].metric:
            raise InputError.because(
                f"{name} is judged by its {ours[seed].metric.words} and {other} by its "
                f"{theirs[seed].metric.words}; there is nothing to compare."
            )
    metric = runs[0].metric
    points = [metric.gain(ours[s].test.score, theirs[s].test.score) for s in seeds]
    return Comparison(
        name=name,
        baseline=other,
        seeds=tuple(seeds),
        difference=mean_interval(points),
        metric=metric.name,
        check=check_together(run.check for run in runs),
    )


def load_group(path: str | Path) -> list[Run]:
    """The run in a folder, or all the runs (one a seed) in the folders in it.

    Raises:
        DataMissingError: there is none.
        InputError: one of them is not finished.
    """
    runs = [Run.load(folder) for folder in find_runs(path)]
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
