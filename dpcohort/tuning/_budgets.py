# SPDX-License-Identifier: Apache-2.0
"""``worth``: what budgets are worth, in noise and in accuracy, and who should raise one first.

How the noise changes with budgets is computed, not predicted: the selection problem is solved again
with each client's budget doubled, and its derivative with respect to every budget is known from the
optimum itself (what is optimal does not move at first order). What that means for accuracy is
predicted, by training on generated or public records with the noise of other budgets; it is as good
as these records are like the clients'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray, choice, number
from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.errors import InputError
from dpcohort.explain import NoiseGain, Scenario, noise_gains
from dpcohort.progress import Progress, silent
from dpcohort.runs import (
    Interval,
    configured_data,
    configured_population,
    data_section,
    mean_interval,
)
from dpcohort.training import Training
from dpcohort.tuning._search import (
    PROBLEMS,
    Bench,
    Problem,
    counted,
    samples_of,
    scored,
)

#: Common factors on all budgets that are tried.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_STACK = 6


@dataclass(frozen=True, kw_only=True)
class Gain(NoiseGain):
    """What a client's larger budget would be worth to all.

    Attributes:
        accuracy: predicted gain in accuracy by a doubled epsilon, in points, with its interval.
    """

    accuracy: Interval


@dataclass(frozen=True, kw_only=True)
class Worth:
    """Accuracy against a common factor on all budgets, and the clients by what they could add.

    Attributes:
        source: in words, which records accuracy was predicted from.
        factors: on every epsilon.
        noise: norm of the noise on a round's mean gradient in units of the clip, of each factor.
        sets: names of the data sets.
        scores: of each factor, on each data set, from 0 to 1.
        gains: clients, those first whose larger budget takes most noise away.
        training: the settings it is about.
    """

    source: str
    factors: tuple[float, ...]
    noise: tuple[float, ...]
    sets: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]
    gains: tuple[Gain, ...]
    training: Training | None = None

    def curve(self, name: str | None = None) -> list[Interval]:
        """Mean score of each factor with its interval, over all data sets or those of a name."""
        places = [i for i, known in enumerate(self.sets) if name in (None, known)]
        return [mean_interval([row[i] for i in places]) for row in self.scores]

    def needed(self, target: float) -> dict[str, float | None]:
        """The factor on all budgets at which each kind of data set reaches a score; None if none.

        Example:
            >>> Worth(source="", factors=(1.0, 2.0, 4.0), noise=(3.0, 2.0, 1.0), sets=("a",),
            ...     scores=((0.5,), (0.7,), (0.9,)), gains=()).needed(0.7)
            {'a': 2.0}
        """
        number("target", target, above=0, below=1)
        found: dict[str, float | None] = {}
        for name in dict.fromkeys(self.sets):
            means = np.maximum.accumulate([point.mean for point in self.curve(name)])
            if means[-1] < target:
                found[name] = None
            elif means[0] >= target:
                found[name] = self.factors[0]
            else:
                place = int(np.argmax(means >= target))
                around = slice(place - 1, place + 1)
                between = np.interp(target, means[around], np.log(self.factors)[around])
                found[name] = round(float(np.exp(between)), 3)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": "dpcohort worth",
            "schema": 1,
            "source": self.source,
            "training": None if self.training is None else asdict(self.training),
            "factors": [
                {"factor": factor, "noise_to_clip": noise, "accuracy": asdict(point)}
                for factor, noise, point in zip(self.factors, self.noise, self.curve(), strict=True)
            ],
            "sets": {
                name: [asdict(point) for point in self.curve(name)]
                for name in dict.fromkeys(self.sets)
            },
            "gains": [asdict(gain) for gain in self.gains],
        }


def worth(
    config: Config,
    *,
    source: str = "none",
    public: str | Path | None = None,
    factors: Sequence[float] = FACTORS,
    seeds: int = 2,
    problems: Sequence[Problem] = PROBLEMS,
    device: str | None = None,
    progress: Progress = silent,
) -> Worth:
    """Predict accuracy for other budgets, and rank the clients by what more of theirs is worth.

    All settings stay as the configuration has them; nothing is spent.

    Args:
        config: with data and a planned rule.
        source: ``none`` (generated records) or ``public``.
        public: as in `dpcohort.tuning.tune`.
        factors: on every epsilon; 1, as it is, is always among them.
        seeds: repetitions.
        problems: kinds of generated problems.
        device: instead of the configuration's.
        progress: told how far it is.

    Raises:
        InputError: there is no data or no public record, or the rule decides during the training.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> config = config.with_overrides(["training.rounds=3", "run.evaluate_every=3"])
        >>> found = worth(config, factors=[4.0], seeds=1, problems=PROBLEMS[:1], device="cpu")
        >>> found.factors, found.noise[1] < found.noise[0], found.gains[0].noise <= 1
        ((1.0, 4.0), True, True)
    """
    choice("source", source, ["none", "public"])
    data_section(config)
    if config.is_adaptive:
        raise InputError.because(
            f"the rule {config.rule} decides during the training, so no optimum says what a budget "
            "is worth. Take a planned rule."
        )
    tried = sorted({1.0, *(number("factor", factor, above=0) for factor in factors)})
    data = configured_data(config)
    config = counted(config, data)
    population = configured_population(config, data)
    samples, _, words = samples_of(source, config, data, population, public, problems, seeds)
    benches = [
        Bench(config, population.with_scaled_budgets(factor), samples, device=device)
        for factor in tried
    ]
    scores, noise = np.zeros((len(tried), len(samples))), np.zeros(len(tried))
    done, total = 0, scores.size
    for column, (_, seed, sample) in enumerate(samples):
        jobs = [bench.job(None, sample, seed) for bench in benches]
        noise += [job.plan.noise_to_clip / len(samples) for job in jobs]
        for start in range(0, len(jobs), _STACK):
            progress("budgets", done, total)
            stack = jobs[start : start + _STACK]
            scores[start : start + len(stack), column] = scored(stack, sample)
            done += len(stack)
    progress("budgets", total, total)
    slopes = _accuracy_slopes(noise, scores)
    return Worth(
        source=words,
        factors=tuple(tried),
        noise=tuple(noise.tolist()),
        sets=tuple(name for name, _, _ in samples),
        scores=tuple(tuple(row) for row in scores.tolist()),
        gains=tuple(_gains(config, population, slopes)),
        training=config.training,
    )


def _accuracy_slopes(noise: FloatArray, scores: FloatArray) -> FloatArray:
    """Of each data set: change of accuracy by the logarithm of the noise, by least squares."""
    if len(noise) < 2 or np.ptp(noise) == 0.0:
        return np.zeros(scores.shape[1])
    logs = np.log(noise) - np.log(noise).mean()
    slopes: FloatArray = (logs @ (scores - scores.mean(0))) / (logs @ logs)
    return slopes


def _gains(config: Config, population: Population, slopes: FloatArray) -> list[Gain]:
    scenario = Scenario(
        population=population,
        training=config.training,
        rule=config.rule,
        rule_settings=config.rule_settings,
        contract=config.contract,
        noise_model=config.noise_model,
    )
    return [
        Gain(
            **asdict(gain),
            accuracy=mean_interval([float(100.0 * s * np.log(gain.noise)) for s in slopes]),
        )
        for gain in noise_gains(scenario)
    ]
