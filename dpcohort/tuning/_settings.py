# SPDX-License-Identifier: Apache-2.0
"""What is tuned, how it is written into a configuration, and where to begin without any search.

With whole clients in every step the noise of all steps together depends on how far the model moves,
not on the number of steps that it takes: a budget pays for a distance. So a step size is thought of
as a *path*, ``learning_rate * clip * rounds * local_steps``, which is the farthest that clipped
gradients can carry the model, and η as the *lean*: the share of the way from unbiased selection to
the selection of least noise.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

from dpcohort._validate import number, whole_number
from dpcohort.accounting import Contract
from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.data import Dataset
from dpcohort.plan import selection_problem
from dpcohort.tasks import CURVATURES
from dpcohort.training import Training


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that are tuned.

    Attributes:
        rounds: global rounds.
        rate: share of its records a client uses in a step; 1 is whole clients.
        clip: norm to which gradients are clipped.
        path: learning rate times clip times all steps.
        lean: from 0, unbiased, to 1, the selection of least noise; None leaves the rule alone.
        second_moments: κ of a linear model with Newton steps; 0 takes plain ones.
        moments: how many second moments such a model has.

    Example:
        >>> Settings(path=100.0).learning_rate(local_steps=2)
        0.5
    """

    rounds: int = 100
    rate: float = 1.0
    clip: float = 1.0
    path: float = 100.0
    lean: float | None = None
    second_moments: float = 0.0
    moments: int = 0

    def learning_rate(self, *, local_steps: int = 1) -> float:
        """The constant step that goes this path, in two digits."""
        return digits(self.path / (self.clip * self.rounds * local_steps))


def suggested_settings(
    population: Population,
    *,
    dimension: int,
    inputs: int | None = None,
    rule: str = "privacy-aware",
    task: str = "classification",
    row_bound: float = math.inf,
    width: int = 0,
    most_rounds: int = 100,
    summed_rows: int = 1,
    config: Config | None = None,
) -> Settings:
    """Start settings from sizes, budgets and bounds alone: source *none* without its search.

    Whole clients, for a budget then pays for a distance, whatever the number of steps; and
    probabilities most of the way to the least noise where budgets differ. A linear model within
    public bounds clips where these end, so that probabilities stay honest. It takes Newton steps,
    for which a share of each budget buys second moments, unless the noise of these is loud;
    then the longest step at which its loss cannot diverge, or a shorter one where the
    noise would drown the model.
    Of others the clip is below nearly all gradients, so that their scale does not matter, and the
    path carries a linear model over inputs of the usual scale to where its predictions are sure.
    `dpcohort.tuning.tune` goes on from there.

    Args:
        population: sizes and budgets.
        dimension: trained parameters.
        inputs: numbers in a record; more of them make each step count for more.
        rule: of the selection; any but ``privacy-aware`` keeps its own settings.
        task: its kind; the losses of numbers and counts are steeper, so their path is shorter.
        row_bound: largest norm of a row of a linear model, see `Dataset.row_bound`.
        width: inputs of a linear model, with the 1 of a bias; 0 rules Newton steps out.
        most_rounds: the most there may be. A single one has Newton's step of X'X and X'y.
        summed_rows: rows of one person whose gradients are added up before they are clipped.
        config: contract and cohort size, for the noise; by default the usual ones.

    Example:
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> suggested_settings(clients, dimension=650).clip
        1.0
        >>> suggested_settings(clients, dimension=18, row_bound=3.0).clip
        3.0
    """
    whole_number("dimension", dimension, at_least=1)
    budgets = population.epsilon[~population.public]
    uneven = budgets.size > 1 and float(budgets.max()) > 1.01 * float(budgets.min())
    lean = None
    if rule == "privacy-aware":
        lean = _LEAN if uneven or population.public.any() else 0.0
    rounds, moments = min(Settings.rounds, most_rounds), max(0, width - 1) * width
    found = Settings(rounds=rounds, lean=lean, moments=moments)
    within = within_bounds(found, row_bound, task, summed_rows)
    if 1 < width <= _WIDEST and math.isfinite(row_bound):
        for most, loudest in _NEWTON_ROUNDS.items():
            newton = _newton(within or found, row_bound, task, min(most, rounds), summed_rows)
            share = _share_of_moments(newton.rounds) * newton.rounds
            noise = _noise_to_clip(newton, population, dimension, config) / math.sqrt(dimension)
            loudest = min(loudest, _LOUDEST_OF_CLASSES) if task == "classification" else loudest
            if noise * math.sqrt(2 * width / share) < loudest:
                return newton
    if within is not None:
        noise = _noise_to_clip(found, population, dimension, config)
        drowned = _LOUDEST * math.sqrt(dimension / found.rounds) / max(noise, 1e-9)
        longest = digits(drowned / row_bound * found.rounds)
        return replace(within, path=min(within.path, longest))
    scale = 1.0 if inputs is None else math.sqrt(64 / whole_number("inputs", inputs, at_least=1))
    path = _PATH_OF_NUMBERS if task in ("regression", "counts") else _PATH
    return replace(found, path=digits(path * min(1.0, scale)))


def linear_width(config: Config, data: Dataset) -> int:
    """Inputs and the 1 of a bias, where a model could take Newton steps; 0 of any other."""
    options = config.model.options
    linear = config.model.name == "logistic" and options.get("features", "none") == "none"
    plain = not (config.optimiser.server or config.optimiser.local or config.model.frozen)
    if not (linear and plain and options.get("bias", True) and config.training.local_steps == 1):
        return 0
    return math.prod(data.input_shape) + 1


def within_bounds(
    settings: Settings, row_bound: float, task: str, summed_rows: int = 1
) -> Settings | None:
    """Settings with the clip at public bounds and the longest stable step; None without bounds.

    The sum over a person's rows is clipped at the root of their most times the bound of one: were
    it clipped as one row, who comes often would count less, and probabilities would be those of
    people who come once.

    Example:
        >>> found = within_bounds(Settings(), 4.0, "classification")
        >>> found.clip, found.learning_rate()
        (4.0, 0.25)
        >>> of_persons = within_bounds(Settings(), 4.0, "classification", summed_rows=4)
        >>> of_persons.clip, of_persons.learning_rate()
        (8.0, 0.25)
    """
    if task == "counts" or not math.isfinite(row_bound):
        return None
    clip = digits(row_bound * math.sqrt(summed_rows))
    step = _STABLE / CURVATURES[task] / row_bound**2
    return replace(settings, clip=clip, path=digits(step * clip * settings.rounds))


def _newton(
    plain: Settings, row_bound: float, task: str, rounds: int, summed_rows: int
) -> Settings:
    """Plain settings of a linear model with Newton steps in their place."""
    share = _share_of_moments(rounds)
    clip_of_row = _GRADIENT.get(task, 1.0) * row_bound / math.sqrt(1 - share)
    clip = digits(clip_of_row * math.sqrt(summed_rows), 3)
    return replace(
        plain,
        rounds=rounds,
        clip=clip,
        path=plain.learning_rate() * clip * rounds,
        second_moments=digits(math.sqrt(share) * clip_of_row / row_bound**2, 3),
    )


def _share_of_moments(rounds: int) -> float:
    """Share of each budget that buys second moments; fewer rounds each need better ones."""
    return min(0.4, 2 / rounds)


#: Newton steps, by the most that noise may make of the largest second moment there can be: where
#: it is loud, fewer steps keep the model smaller.
_NEWTON_ROUNDS = {30: 0.05, 20: 1.0}
#: Gradients of classes need them less: few records are classified as well by plain steps.
_LOUDEST_OF_CLASSES = 0.05
#: Where gradients are clipped, in norms of a row: numbers seldom err by as much as their range,
#: counts by more than 1.
_GRADIENT = {"regression": 0.5, "counts": 2.0}
#: Second moments of more inputs than this are large updates.
_WIDEST = 400
#: Found on the generated problems; `benchmarks/tuning.py` prints what it is worth on real sets.
_PATH = 100.0
_PATH_OF_NUMBERS = 30.0
_LEAN = 0.9
#: Gradient descent is stable with steps below this over the curvature.
_STABLE = 2.0
#: Length that noise may give to the weights, by their dimension and the norm of a row.
_LOUDEST = 1.2


def _noise_to_clip(
    settings: Settings, population: Population, dimension: int, config: Config | None
) -> float:
    """Expected norm of the noise on a round's mean gradient, in units of the clip."""
    training = Training(
        rounds=settings.rounds,
        cohort_size=10 if config is None else config.training.cohort_size,
        sampling_rate=None if population.batch_sizes.all() else settings.rate,
        dimension=dimension,
    )
    contract = Contract.of("tight") if config is None else config.contract
    problem, _ = selection_problem(population, training, contract=contract, noise_model="exact")
    probabilities = problem.unbiased
    if settings.lean:
        path = problem.path()
        probabilities = path.at_gap(min(settings.lean, _NEARLY) * path.maximum_gap).probabilities
    return math.sqrt(problem.noise(probabilities) * training.total_steps)


def changes_for(settings: Settings, config: Config, population: Population) -> list[str]:
    """The settings as changes of a configuration, as ``--set`` takes them.

    Args:
        settings: what is wanted.
        config: what it is wanted for.
        population: its clients.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> changes_for(Settings(), config, config.population())
        ['training.rounds=100', 'training.sampling_rate=1.0', 'training.clip=1.0',
         'optimiser.step=constant', 'optimiser.learning_rate=1.0']
    """
    step = settings.learning_rate(local_steps=config.training.local_steps)
    changes = [f"training.rounds={settings.rounds}"]
    if not population.batch_sizes.all():
        changes.append(f"training.sampling_rate={float(settings.rate)!r}")
    changes.append(f"training.clip={float(settings.clip)!r}")
    for key in ("beta", "gamma", "gradient_bound"):
        if key in config.values.get("optimiser", {}):
            changes.append(f"optimiser.{key}=")
    changes += ["optimiser.step=constant", f"optimiser.learning_rate={step!r}"]
    options, stated = dict(config.model.options), config.values.get("training", {}).get("dimension")
    before = options.pop("second_moments", 0)
    if settings.second_moments:
        options["second_moments"] = float(settings.second_moments)
    if before or settings.second_moments:
        pairs = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
        changes.append(f"model.options={{ {', '.join(pairs)} }}" if pairs else "model.options=")
        if stated is not None:
            more = bool(settings.second_moments) - bool(before)
            changes.append(f"training.dimension={stated + more * settings.moments}")
    if settings.lean is not None:
        changed = config.with_overrides(changes)
        eta = eta_of_lean(settings.lean, population, changed.training, config)
        changes.append(f"selection.eta={eta!r}")
    return changes


def eta_of_lean(
    lean: float, population: Population, training: Training, config: Config | None = None
) -> float:
    """The η that goes this share of the way from unbiased selection to the least noise.

    Example:
        >>> clients = Population.from_arrays(sizes=[300, 300], epsilon=[1.0, 8.0], delta=1e-5)
        >>> settings = Training(rounds=20, cohort_size=2, sampling_rate=1.0, dimension=10)
        >>> eta_of_lean(0.0, clients, settings), eta_of_lean(0.5, clients, settings) > 0
        (0.0, True)
    """
    share = number("lean", lean, at_least=0, at_most=1)
    if share == 0.0:
        return 0.0
    contract = Contract.of("tight") if config is None else config.contract
    model = "exact" if config is None else config.noise_model
    problem, _ = selection_problem(population, training, contract=contract, noise_model=model)
    given: dict[str, Any] = {} if config is None else dict(config.rule_settings)
    floor, cap = float(given.get("floor", 0.0)), float(given.get("cap", 1.0))
    path = problem.path(
        floor=floor * problem.unbiased if floor > 0.0 else None,
        cap=[cap] * problem.size if cap < 1.0 else None,
    )
    if path.maximum_gap <= 1e-9:
        return 0.0
    # The end itself is reached by no finite eta.
    eta = path.at_gap(min(share, _NEARLY) * path.maximum_gap).eta
    return digits(eta, 3)


_NEARLY = 0.98


def digits(value: float, digits: int = 2) -> float:
    """The number with so many digits that count, as a person would write it.

    Example:
        >>> digits(0.031623), digits(1234.5, 3)
        (0.032, 1230.0)
    """
    if value == 0.0 or not math.isfinite(value):
        return value
    return float(f"{value:.{digits}g}")
