# SPDX-License-Identifier: Apache-2.0
"""What the explorer in the page needs: noise at the stops of its sliders, computed here.

The page solves the selection by itself (``assets/solver.js``). What it cannot do is calibrate: so
the noise levels that selection weighs are computed here for every stop of the two sliders that
change them (rounds, one client's epsilon), by the functions that planning uses, and the page has
the same probabilities as ``dpcohort what-if``. The noise that a client would add is a table over
its draws. More draws never need less noise, so between two entries the page shows at most the next
one, and never less than what was calibrated; ``margin`` is how far it raises a straight line.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting.deployed_noise import CALIBRATION_LIMIT, noise_levels
from dpcohort.accounting.tight import calibrate_noise
from dpcohort.plan import Plan
from dpcohort.report.html.client_points import MOST_POINTS
from dpcohort.selection.path import SelectionPath

__all__ = ["EPSILON_FACTORS", "ROUND_FACTORS", "explorer_data", "interpolation_margin"]

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

#: Added to every margin: what a certificate's own rounding usually asks for.
_LEAST_MARGIN = 1e-3


def explorer_data(plan: Plan) -> dict[str, Any]:
    """Everything the explorer computes from, or why there is none.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=8, cohort_size=2, batch_size=50), seed=1)
        >>> explorer_data(plan)["rounds"]
        [2, 4, 6, 8, 12, 16, 32]
    """
    if len(plan.population) > MOST_POINTS:
        return {
            "available": False,
            "why": f"The explorer is for up to {MOST_POINTS:,} clients; this plan has "
            f"{len(plan.population):,}. Use dpcohort what-if.",
        }
    population, training = plan.population, plan.training
    rounds = _round_stops(plan)
    changeable = _changeable(plan, len(rounds))
    entries = _entries(max(rounds) * training.cohort_size)
    everyone = np.arange(len(population))
    levels = _levels(plan, everyone, population.epsilon, rounds)
    settings = dict(plan.selection.settings)
    aware = plan.selection.rule == "privacy-aware"
    return {
        "available": True,
        "ids": list(population.ids),
        "sizes": population.sizes.tolist(),
        "unbiased": plan.selection.unbiased.tolist(),
        "epsilon": population.epsilon.tolist(),
        "delta": population.delta.tolist(),
        "public": population.public.tolist(),
        "batch": plan.batch_sizes.tolist(),
        "rate": plan.sampling_rates.tolist(),
        "rule": plan.selection.rule,
        "planned": plan.selection.probabilities.tolist(),
        "eta": plan.selection.eta,
        "eta_range": _eta_range(plan),
        "mode": _mode(settings) if aware else "auto",
        "bias_cap": settings.get("bias_cap", 0.5) if aware else 0.5,
        "floor": settings.get("floor", 0.0) if aware else 0.0,
        "cap": settings.get("cap", 1.0) if aware else 1.0,
        "cohort_size": training.cohort_size,
        "local_steps": training.local_steps,
        "dimension": training.dimension,
        "smoothness": training.smoothness,
        "noise_model": plan.noise_model,
        "accountant": plan.contract.accountant,
        "rounds": rounds,
        "rounds_now": rounds.index(training.rounds),
        "levels": [{"level": a.tolist(), "floor": b.tolist()} for a, b in levels],
        "epsilon_factors": list(EPSILON_FACTORS),
        "changed": _changed_levels(plan, rounds, changeable),
        "noise": _noise_table(plan, entries, changeable),
    }


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
    path = SelectionPath(problem.unbiased, problem.noise_costs, linear_costs=problem.linear_costs)
    auto = problem.eta("auto")
    low = path.threshold / 2 if math.isfinite(path.threshold) and path.threshold > 0 else auto / 1e3
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
        levels = noise_levels(
            epsilon=np.tile(epsilon[np.searchsorted(clients, part)], len(rounds)),
            delta=plan.population.delta[rows],
            public=plan.population.public[rows],
            sizes=plan.population.sizes[rows],
            batch_sizes=plan.batch_sizes[rows],
            expected_draws=plan.selection.unbiased[rows] * counts,
            local_steps=plan.training.local_steps,
            contract=plan.contract,
            calibrated=plan.noise_model == "exact",
        )
        shape = (len(rounds), part.size)
        found.append((levels.level.reshape(shape), levels.floor.reshape(shape)))
    level = np.concatenate([part[0] for part in found], axis=1)
    floor = np.concatenate([part[1] for part in found], axis=1)
    return list(zip(level, floor, strict=True))


def _changed_levels(plan: Plan, rounds: list[int], clients: IntArray) -> dict[str, Any]:
    """The same for each changeable client at every stop of its epsilon: [round stop][factor]."""
    if clients.size == 0:
        return {}
    in_order = np.sort(clients)
    by_factor = [
        _levels(plan, in_order, factor * plan.population.epsilon[in_order], rounds)
        for factor in EPSILON_FACTORS
    ]
    return {
        str(k): {
            "level": [[float(f[r][0][i]) for f in by_factor] for r in range(len(rounds))],
            "floor": [[float(f[r][1][i]) for f in by_factor] for r in range(len(rounds))],
        }
        for i, k in enumerate(in_order.tolist())
    }


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
    if clients.size == 0:
        return np.zeros((0, draws.size))
    return np.asarray(
        calibrate_noise(
            epsilon=epsilon[:, None],
            delta=plan.population.delta[clients, None],
            sampling_rate=plan.sampling_rates[clients, None],
            steps=(draws * plan.training.local_steps)[None, :],
            sampler=plan.contract.sampler,
            neighbours=plan.contract.neighbours,
        )
    )


def _certified_raise(plan: Plan, clients: IntArray) -> FloatArray:
    """By how much the certificate raised a client's tight noise in the plan; 1 where it did not."""
    factor = np.ones(clients.size)
    drawn = np.flatnonzero(plan.drawn[clients])
    if plan.contract.accountant != "tight" or drawn.size == 0:
        return factor
    at = clients[drawn]
    z = calibrate_noise(
        epsilon=plan.population.epsilon[at],
        delta=plan.population.delta[at],
        sampling_rate=plan.sampling_rates[at],
        steps=plan.steps[at],
        sampler=plan.contract.sampler,
        neighbours=plan.contract.neighbours,
    )
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
