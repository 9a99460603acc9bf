# SPDX-License-Identifier: Apache-2.0
"""A section of the HTML report that answers "what if": sliders over a plan's selection and noise.

The page solves and calibrates nothing. For every number of rounds on its slider the optimum of
Problem 1 is computed here over eta, by the functions that planning uses, at as many eta as it takes
for a straight line in log eta to lie close to what is between them; the page draws that line. What
one client's epsilon changes is computed for the plan's other settings. The noise that a client
would add is a table over its draws. More draws never need less noise, so between two entries the
page shows at most the next one, and never less than what was calibrated; ``margin`` is how far it
raises a straight line.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort.accounting import CALIBRATION_LIMIT, calibrate_noise, noise_levels
from dpcohort.plan import Plan
from dpcohort.report import Section, fill_template
from dpcohort.selection import PrivacyAware, SelectionProblem, exact_costs, paper_costs
from dpcohort_lab.checks import FloatArray, IntArray

__all__ = ["EPSILON_FACTORS", "explorer_data", "section"]

#: With more clients there is no explorer.
MOST_CLIENTS = 1_000

#: Stops of the sliders, relative to the plan.
ROUND_FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
_FEW_ROUND_FACTORS = (0.5, 1.0, 2.0)
EPSILON_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)

#: Above this many clients there are fewer stops, and noise is shown for the changeable ones only.
_MANY = 200

#: So many calibrations at most go into the clients whose epsilon can be changed.
_MOST_CALIBRATIONS = 4_000

#: Entries of the table of noise over draws.
_ENTRIES = 10

#: Etas of a path: at least and at most. More are added where a line is farther off than this.
_FEWEST_ETAS, _MOST_ETAS, _CLOSE = 9, 33, 2e-3

#: Added to every margin: what a certificate's own rounding usually asks for.
_LEAST_MARGIN = 1e-3


def section(plan: Plan, folder: Path) -> Section:
    """The explorer of a plan, for the page of its run.

    Args:
        plan: of the run.
        folder: of the run; it does not count here.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=8, cohort_size=2, batch_size=50), seed=1)
        >>> section(plan, Path()).title
        'What if'
    """
    data = explorer_data(plan)
    charged = bool(plan.past.paid.charges)
    return Section(
        name="what-if",
        title="What if" if data["available"] else "",
        markup=fill_template(_asset("explorer.html.j2"), data=data, charged=charged),
        data=data,
        scripts=(_asset("noise.js"), _asset("explorer.js")),
    )


def _asset(name: str) -> str:
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")  # browsers hash what they read, and they read CRLF as LF


def explorer_data(plan: Plan) -> dict[str, Any]:
    """Everything the explorer computes from, or why there is none.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=8, cohort_size=2, batch_size=50), seed=1)
        >>> explorer_data(plan)["rounds"]
        [2, 4, 6, 8, 12, 16, 32]
    """
    why = _why_none(plan)
    if why:
        return {"available": False, "why": why}
    population, training = plan.population, plan.training
    rounds = _round_stops(plan)
    changeable = _changeable(plan, len(rounds))
    entries = _entries(max(rounds) * training.cohort_size)
    everyone = np.arange(len(population))
    levels = _levels(plan, everyone, population.epsilon, rounds)
    problems = [_problem(plan, *found, t) for found, t in zip(levels, rounds, strict=True)]
    at_plan = levels[rounds.index(training.rounds)]
    aware = plan.rule == "privacy-aware"
    settings = dict(plan.participation.settings) if aware else {}
    columns = ("sizes", "epsilon", "delta", "public")
    shared = ("cohort_size", "local_steps", "smoothness")
    return {
        "available": True,
        "ids": list(population.ids),
        "unbiased": plan.selection.unbiased.tolist(),
        **{name: getattr(population, name).tolist() for name in columns},
        **{name: getattr(training, name) for name in shared},
        "batch": plan.batch_sizes.tolist(),
        "rate": plan.sampling_rates.tolist(),
        "rule": plan.rule,
        "planned": plan.selection.probabilities.tolist(),
        "eta": plan.selection.eta,
        "eta_range": _eta_range(plan),
        "mode": _mode(settings),
        "bias_cap": settings.get("bias_cap", 0.5),
        "floor": settings.get("floor", 0.0),
        "cap": settings.get("cap", 1.0),
        "accountant": plan.contract.accountant,
        "rounds": rounds,
        "rounds_now": rounds.index(training.rounds),
        "paths": [_path_table(plan, problem, settings) for problem in problems],
        "epsilon_factors": list(EPSILON_FACTORS),
        "changed": _changed(plan, at_plan, changeable, settings),
        "noise": _noise_table(plan, entries, changeable),
    }


def _why_none(plan: Plan) -> str:
    if len(plan.population) > MOST_CLIENTS:
        return (
            f"The explorer is for up to {MOST_CLIENTS:,} clients; this plan has "
            f"{len(plan.population):,}. Use dpcohort what-if."
        )
    return plan.participation.no_explorer or plan.past.no_explorer or plan.noise.no_explorer


def _mode(settings: dict[str, Any]) -> str:
    if "bias_cap" in settings:
        return "bias"
    return "auto" if settings.get("eta", "auto") == "auto" else "eta"


def _round_stops(plan: Plan) -> list[int]:
    factors = ROUND_FACTORS if len(plan.population) <= _MANY else _FEW_ROUND_FACTORS
    return sorted({max(1, round(factor * plan.training.rounds)) for factor in factors})


def _changeable(plan: Plan, stops: int) -> IntArray:
    """Clients whose epsilon has a slider: as many as time allows, evenly over the budgets."""
    private = np.flatnonzero(~plan.population.public)
    order = private[np.argsort(plan.population.epsilon[private], kind="stable")]
    most = _MOST_CALIBRATIONS // (len(EPSILON_FACTORS) * (stops + 1 + _ENTRIES))
    if order.size <= most:
        return order
    chosen = np.linspace(0, order.size - 1, most).round().astype(np.int64)
    return order[np.unique(chosen)]


def _eta_range(plan: Plan) -> list[float]:
    """From where nothing moves to where hardly anything moves any more."""
    problem = plan.problem
    start, auto = problem.threshold, problem.eta("auto")
    low = start / 2 if math.isfinite(start) and start > 0 else auto / 1e3
    low = max(low, auto * 1e-8)
    return [min(low, plan.selection.eta or low, auto), max(100 * auto, plan.selection.eta)]


def _levels(
    plan: Plan, clients: IntArray, epsilon: FloatArray, rounds: list[int]
) -> list[tuple[FloatArray, FloatArray]]:
    """Level and floor of clients at each number of rounds, as planning would compute them."""
    found = []
    for part in np.array_split(clients, max(1, clients.size * len(rounds) // CALIBRATION_LIMIT)):
        # One call for all numbers of rounds: what they share is calibrated once.
        rows = np.tile(part, len(rounds))
        counts = np.repeat(rounds, part.size) * plan.training.cohort_size
        level, floor = noise_levels(
            epsilon=np.tile(epsilon[np.searchsorted(clients, part)], len(rounds)),
            delta=plan.population.delta[rows],
            public=plan.population.public[rows],
            sizes=plan.population.sizes[rows],
            batch_sizes=plan.batch_sizes[rows],
            expected_draws=plan.selection.unbiased[rows] * counts,
            local_steps=plan.training.local_steps,
            contract=plan.contract,
            calibrated=plan.participation.fixed.noise_model == "exact",
        )
        shape = (len(rounds), part.size)
        found.append((level.reshape(shape), floor.reshape(shape)))
    level = np.concatenate([part[0] for part in found], axis=1)
    floor = np.concatenate([part[1] for part in found], axis=1)
    return list(zip(level, floor, strict=True))


def _problem(plan: Plan, level: FloatArray, floor: FloatArray, rounds: int) -> SelectionProblem:
    """The plan's problem at another number of rounds, or for another level and floor of noise."""
    training = replace(plan.training, rounds=rounds)
    if plan.participation.fixed.noise_model == "exact":
        noise, linear = exact_costs(
            level,
            floor,
            dimension=training.dimension,
            total_draws=training.total_draws,
            local_steps=training.local_steps,
        )
    else:
        noise, linear = paper_costs(level, dimension=training.dimension)
    return replace(
        plan.problem, noise_costs=noise, linear_costs=linear, total_steps=training.total_steps
    )


def _path_table(plan: Plan, problem: SelectionProblem, settings: Mapping[str, Any]) -> Any:
    """The optimum over eta, at points between which a line in log eta is close; then the limit.

    The largest distance, half of ``||p - line||_1`` halfway between two points, is ``error``.
    """
    floor, cap = settings.get("floor", 0.0), settings.get("cap", 1.0)
    path = problem.path(
        floor=floor * problem.unbiased if floor > 0.0 else None,
        cap=np.full(problem.size, cap) if cap < 1.0 else None,
    )
    low, high = _eta_range(plan)
    start = [*np.geomspace(low, high, _FEWEST_ETAS).tolist(), problem.eta("auto")]
    start += [plan.selection.eta] if low <= plan.selection.eta <= high else []
    rows = {eta: path.at(eta).probabilities for eta in start}
    between: dict[float, FloatArray] = {}
    waiting: list[tuple[float, float, float, float]] = []

    def look_between(low: float, high: float) -> None:
        middle = math.sqrt(low * high)
        line = (rows[low] + rows[high]) / 2.0
        between[middle] = path.at(middle).probabilities
        distance = float(np.abs(between[middle] - line).sum()) / 2.0
        heapq.heappush(waiting, (-distance, low, middle, high))

    for pair in pairwise(sorted(rows)):
        look_between(*pair)
    while waiting[0][0] < -_CLOSE and len(rows) < _MOST_ETAS:
        _, low, middle, high = heapq.heappop(waiting)
        rows[middle] = between[middle]
        look_between(low, middle)
        look_between(middle, high)
    etas = sorted(rows)
    found = [*(rows[eta] for eta in etas), path.limit]
    return {
        "eta": etas,
        "p": [[float(f"{value:.7g}") for value in row.tolist()] for row in found],
        "noise": [math.sqrt(problem.total_steps * _noise(problem, row)) for row in found],
        "error": -waiting[0][0],
    }


def _noise(problem: SelectionProblem, p: FloatArray) -> float:
    """Squared norm of a step's noise over the clip, per unit of eta."""
    drawn = p > 0.0
    a, b, p = problem.noise_costs[drawn], problem.linear_costs[drawn], p[drawn]
    return float(((a * p + b) * p).sum())


def _changed(
    plan: Plan, at_plan: tuple[FloatArray, FloatArray], clients: IntArray, settings: dict[str, Any]
) -> dict[str, list[float]]:
    """Each changeable client's probability at every stop of its epsilon, all else as planned."""
    if clients.size == 0:
        return {}
    in_order, rule = np.sort(clients), PrivacyAware(**settings)
    found: dict[str, list[float]] = {str(k): [] for k in in_order.tolist()}
    for factor in EPSILON_FACTORS:
        epsilon = factor * plan.population.epsilon[in_order]
        [changed] = _levels(plan, in_order, epsilon, [plan.training.rounds])
        for i, k in enumerate(in_order.tolist()):
            level, floor = (column.copy() for column in at_plan)
            level[k], floor[k] = changed[0][i], changed[1][i]
            problem = _problem(plan, level, floor, plan.training.rounds)
            found[str(k)].append(float(rule.select(problem).probabilities[k]))
    return found


def _entries(most: int) -> IntArray:
    """Numbers of draws, 1 to all of them, evenly spaced in their logarithms."""
    spaced = np.geomspace(1, most, _ENTRIES).round().astype(np.int64)
    return np.unique(np.concatenate([[1, min(2, most), min(3, most)], spaced]))


def _noise_table(plan: Plan, entries: IntArray, changeable: IntArray) -> dict[str, Any]:
    """Tight noise multipliers over draws, rounded up; and how far a line between them is raised."""
    private = np.flatnonzero(~plan.population.public)
    if private.size > _MANY:
        private = np.sort(changeable)
    own = _calibrated(plan, private, plan.population.epsilon[private], entries)
    raised = _certified_raise(plan, private)
    factors = np.array(EPSILON_FACTORS)
    rows = np.repeat(changeable, factors.size)
    epsilon = (plan.population.epsilon[changeable, None] * factors).ravel()
    changed = _calibrated(plan, rows, epsilon, entries)
    worst = float(raised.max(initial=1.0))
    columns = {str(k): _up(own[i] * raised[i]) for i, k in enumerate(private.tolist())}
    return {
        "draws": entries.tolist(),
        "own": columns,
        "changed": {
            str(k): [_up(row * worst) for row in changed[i * factors.size : (i + 1) * factors.size]]
            for i, k in enumerate(changeable.tolist())
        },
        "margin": interpolation_margin(plan, private, entries),
    }


def _calibrated(plan: Plan, clients: IntArray, epsilon: FloatArray, draws: IntArray) -> FloatArray:
    """Tight noise multipliers [clients, draws]."""
    steps = (draws * plan.training.local_steps)[None, :]
    return _tight(plan, clients[:, None], epsilon[:, None], steps)


def _tight(plan: Plan, clients: IntArray, epsilon: FloatArray, steps: IntArray) -> FloatArray:
    """Tight noise multipliers of clients at other budgets and steps."""
    return np.asarray(
        calibrate_noise(
            epsilon=epsilon,
            delta=plan.population.delta[clients],
            sampling_rate=plan.sampling_rates[clients],
            steps=steps,
            **plan.contract.sampling(plan.training.local_steps),
        )
    )


def _certified_raise(plan: Plan, clients: IntArray) -> FloatArray:
    """By how much the certificate raised a client's tight noise in the plan; 1 where it did not."""
    factor = np.ones(clients.size)
    drawn = np.flatnonzero(plan.drawn[clients])
    if plan.contract.accountant != "tight" or drawn.size == 0:
        return factor
    at = clients[drawn]
    z = _tight(plan, at, plan.population.epsilon[at], plan.steps[at])
    factor[drawn] = np.maximum(1.0, plan.noise_multipliers[at] / z)
    return factor


def interpolation_margin(plan: Plan, clients: IntArray, entries: IntArray) -> float:
    """How far a line in the logarithms falls below the noise halfway between entries, doubled.

    Measured on at most 40 clients, evenly over the order of budgets.
    """
    if clients.size == 0 or entries.size < 2:
        return _LEAST_MARGIN
    order = clients[np.argsort(plan.population.epsilon[clients], kind="stable")]
    sample = order[np.unique(np.linspace(0, order.size - 1, 40).round().astype(np.int64))]
    epsilon = plan.population.epsilon[sample]
    middle = np.unique(np.sqrt(entries[:-1] * entries[1:]).round().astype(np.int64))
    exact = _calibrated(plan, sample, epsilon, middle)
    table = np.log(_calibrated(plan, sample, epsilon, entries))
    line = np.array([np.exp(np.interp(np.log(middle), np.log(entries), row)) for row in table])
    return _LEAST_MARGIN + 2.0 * max(0.0, float((exact / line - 1.0).max()))


def _up(values: FloatArray) -> list[float]:
    """Five digits, rounded up."""
    digits = 10.0 ** (np.floor(np.log10(values)) - 4)
    return [float(f"{v:.6g}") for v in (np.ceil(values / digits) * digits).tolist()]
