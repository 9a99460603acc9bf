# SPDX-License-Identifier: Apache-2.0
"""The noise of every client: what selection expects, and what is really added.

Selection weighs clients by how fast their noise grows with their draws (:func:`noise_levels`); only
probabilities are computed from that. The noise a client really adds (:func:`deploy_noise`) is
calibrated to its realised draws afterwards and certified.

Calibration and certificate are two different computations: whatever proposed the noise (the printed
formula or the contour integral), a pessimistic privacy-loss distribution decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting._calibration import calibrate_noise
from dpcohort.accounting._closed_forms import gaussian_mu, paper_noise_multiplier
from dpcohort.accounting._closed_forms import noise_level as paper_noise_level
from dpcohort.accounting._contract import Contract, Guard
from dpcohort.accounting._events import (
    Event,
    History,
    calibrate_remaining,
    certify_epsilon,
    excess_delta,
    root_near,
)
from dpcohort.accounting._segments import left_epsilon
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError
from dpcohort.progress import Progress, silent

#: The certificate rounds against us; where that alone breaks a promise, the noise is raised by
#: this share, then by twice as much, and so on, until it certifies or has more than doubled.
_RAISE = 2.5e-4
_RAISES = 12

_MOST_NAMED = 5
#: Clients certified between two words of progress.
_CERTIFIED_AT_ONCE = 200


#: Of each client, in the order of the population: its noise multiplier z, 0 if it is public and NaN
#: if it is never drawn; the pessimistic epsilon at its delta after all its steps, 0 if it is never
#: drawn and NaN if it is public; and whether the tight noise took the place of the paper's, which
#: did not certify.
DeployedNoise = tuple[FloatArray, FloatArray, BoolArray]


def deploy_noise(
    population: Population,
    *,
    calibrated_epsilon: FloatArray,
    sampling_rates: FloatArray,
    steps: IntArray,
    contract: Contract,
    local_steps: int = 1,
    guard: Guard = "refuse",
    progress: Progress = silent,
    past: Sequence[History] = (),
) -> DeployedNoise:
    """Calibrate the noise of every drawn client and certify it.

    Args:
        population: the clients and their budgets.
        calibrated_epsilon: what the noise is calibrated to; a rule may ask for less than the
            budget, never for more.
        sampling_rates: r_k.
        steps: T_k T^l, from the schedule; 0 for clients never drawn.
        contract: sampler, neighbours, accountant.
        local_steps: T^l, of one draw.
        guard: what happens where the paper's noise does not certify.
        progress: told how many clients are certified.
        past: what each client spent before; the noise is then for what is left, and the
            certificate of all of it. None of them has a past if it is empty.

    Raises:
        BudgetExceededError: noise that does not keep a promise; the clients are named.
    """
    noise_multiplier = np.where(population.public, 0.0, np.nan)
    certified = np.where(population.public, np.nan, 0.0)
    lifted = np.zeros(len(population), dtype=np.bool_)
    sampling, is_paper = contract.sampling(local_steps), contract.accountant == "paper"
    held = np.flatnonzero((steps > 0) & ~population.public)
    if past:
        for k in np.flatnonzero(~population.public).tolist():
            if past[k].steps:  # also of those that are not drawn again
                certified[k] = past[k].epsilon(float(population.delta[k]))
        has_past = np.array([past[k].steps > 0 for k in held.tolist()], dtype=np.bool_)
        held, later = held[~has_past], held[has_past]
        known: dict[tuple[Any, ...], tuple[float, float, bool]] = {}
        for done, k in enumerate(later.tolist()):
            progress("going on", done, later.size)
            budget = (float(population.epsilon[k]), float(population.delta[k]))
            asked = (float(calibrated_epsilon[k]), float(sampling_rates[k]), int(steps[k]))
            key = (past[k], *budget, *asked)
            if key not in known:
                known[key] = _noise_after(
                    population.ids[k], *key, sampling=sampling, is_paper=is_paper, guard=guard
                )
            noise_multiplier[k], certified[k], lifted[k] = known[key]
    if held.size:
        promises: _Promises = {
            "epsilon": np.minimum(calibrated_epsilon[held], population.epsilon[held]),
            "delta": population.delta[held],
            "sampling_rate": sampling_rates[held],
            "steps": steps[held],
        }
        if is_paper:
            z = paper_noise_multiplier(**promises)
            spent = _certified(promises, z, sampling, progress)
            lifted[held] = broken = _broken(promises, spent)
            if guard == "refuse" and broken.any():
                ids = [population.ids[row] for row in held.tolist()]
                raise BudgetExceededError(_refusal(ids, promises, spent, broken, contract))
            if broken.any():
                tight = _certified_tight_noise(_some(promises, broken), sampling)
                z[broken], spent[broken] = tight
        else:
            z, spent = _certified_tight_noise(promises, sampling, progress)
        noise_multiplier[held], certified[held] = z, spent
    return noise_multiplier, certified, lifted


def _noise_after(
    name: str,
    past: History,
    epsilon: float,
    delta: float,
    asked: float,
    rate: float,
    steps: int,
    *,
    sampling: _Sampling,
    is_paper: bool,
    guard: Guard,
) -> tuple[float, float, bool]:
    """(z, certified epsilon of past and future, lifted) of one client that goes on.

    Args:
        name: of the client.
        past: what it spent.
        epsilon: its promise for all of it.
        delta: its delta.
        asked: the epsilon that a rule wants the noise of the new steps to be made for; no larger
            than what a fresh client would have left.
        rate: r of the new steps.
        steps: how many.
        sampling: sampler and neighbours.
        is_paper: start from the paper's formula.
        guard: what happens where the paper's noise does not certify.
    """
    to_come: Any = {"sampling_rate": rate, "steps": steps}
    alone: Any = {"epsilon": asked, "delta": delta, **to_come}

    def more(z: float) -> Event:
        return Event.of(noise_multiplier=z, **to_come, **sampling)

    if is_paper:
        z = float(paper_noise_multiplier(**alone))
        total = past.append(more(z)).epsilon(delta)
        if total <= epsilon:
            return z, total, False
        if guard == "refuse":
            raise BudgetExceededError(
                f"the paper's noise does not keep the promise of {name!r} together with what it "
                f"spent before: epsilon {total:.4g}, promised {epsilon:.4g}. Use the guard 'lift', "
                "or the accountant 'tight'."
            )
    guess = float(calibrate_noise(**alone, **sampling))
    promise: Any = {"epsilon": epsilon, "delta": delta}
    z, _ = noise_after(name, past, more(guess), **promise)
    if guess > z and asked < left_epsilon(past, **promise):
        z = guess  # the rule asks for more noise than the promise
    while past.append(more(z)).delta(epsilon) > delta:  # a guard asks this way round
        z *= 1 + _RAISE
    return z, past.append(more(z)).epsilon(delta), is_paper


def noise_after(
    name: str, past: History, to_come: Event, *, epsilon: float, delta: float
) -> tuple[float, float]:
    """About the smallest noise with which a client keeps its promise after what it did, certified.

    Args:
        name: of the client.
        past: what it did.
        to_come: the steps to come, with the noise at which the search begins.
        epsilon: its promise for all of it.
        delta: its delta.

    Returns:
        z, and the certified epsilon of past and future.

    Raises:
        BudgetExceededError: nothing is left, or it cannot be certified; the client is named.

    Example:
        >>> past = History((Event.of(noise_multiplier=20.0, sampling_rate=1.0, steps=100),))
        >>> to_come = Event.of(noise_multiplier=3.0, sampling_rate=0.2, steps=50)
        >>> z, spent = noise_after("north", past, to_come, epsilon=4.0, delta=1e-5)
        >>> 2 < z < 4, spent <= 4.0
        (True, True)
    """
    mechanism = to_come.mechanism

    def excess(x: float) -> float:
        return excess_delta(past, to_come, math.exp(x), epsilon=epsilon, delta=delta)

    z = root_near(excess, math.log(mechanism.noise_multiplier))
    if z is None:
        try:
            z = calibrate_remaining(
                past,
                epsilon=epsilon,
                delta=delta,
                sampling_rate=mechanism.sampling_rate,
                steps=to_come.steps,
                sampler=mechanism.sampler,
                neighbours=mechanism.neighbours,
            )
        except BudgetExceededError as error:
            raise BudgetExceededError(f"{name!r}: {error}") from None
    for attempt in range(_RAISES):
        spent = past.append(to_come.changed(noise_multiplier=z)).epsilon(delta)
        if spent <= epsilon:
            return z, spent
        z *= 1 + _RAISE * 2**attempt
    raise BudgetExceededError(
        f"the noise of {name!r} could not be certified; its budget or delta is beyond what "
        "double precision can prove. Raise epsilon or delta."
    )


# What the noise of some clients has to keep: ``epsilon``, ``delta``, ``sampling_rate`` and
# ``steps``, one entry a client, as accounting is asked about them.
_Promises = dict[str, Any]
# Sampler and neighbours, as ``Contract.sampling`` has them.
_Sampling = dict[str, Any]


def _some(promises: _Promises, some: BoolArray | slice) -> _Promises:
    return {name: column[some] for name, column in promises.items()}


def _broken(promises: _Promises, spent: FloatArray) -> BoolArray:
    """Promises that are not kept; a certificate that is not a number keeps none."""
    kept: BoolArray = spent <= promises["epsilon"]
    return ~kept


def _certified(
    promises: _Promises,
    noise_multiplier: FloatArray,
    sampling: _Sampling,
    progress: Progress = silent,
) -> FloatArray:
    """The epsilon that this noise spends."""
    spent = np.empty_like(noise_multiplier)
    asked = {name: column for name, column in promises.items() if name != "epsilon"}
    for start in range(0, spent.size, _CERTIFIED_AT_ONCE):
        progress("certifying", start, spent.size)
        block = slice(start, start + _CERTIFIED_AT_ONCE)
        spent[block] = certify_epsilon(
            **_some(asked, block),
            noise_multiplier=noise_multiplier[block],
            **sampling,
            method="pld",
        )
    progress("certifying", spent.size, spent.size)
    return spent


def _certified_tight_noise(
    promises: _Promises, sampling: _Sampling, progress: Progress = silent
) -> tuple[FloatArray, FloatArray]:
    z = calibrate_noise(**promises, **sampling)
    spent = _certified(promises, z, sampling, progress)
    for attempt in range(_RAISES):
        over = _broken(promises, spent)
        if not over.any():
            return z, spent
        z[over] *= 1 + _RAISE * 2**attempt
        spent[over] = _certified(_some(promises, over), z[over], sampling)
    raise BudgetExceededError(
        f"the noise of {int(_broken(promises, spent).sum())} clients could not be certified; the "
        "budgets or deltas are beyond what double precision can prove. Raise epsilon or delta."
    )


def _refusal(
    ids: Sequence[str],
    promises: _Promises,
    spent: FloatArray,
    broken: BoolArray,
    contract: Contract,
) -> str:
    count = int(broken.sum())
    clients = "client" if count == 1 else "clients"
    rows = [
        f"  {ids[i]}: promised epsilon {promises['epsilon'][i]:.4g}, "
        f"the paper's noise spends {spent[i]:.4g} ({promises['steps'][i]} steps)"
        for i in np.flatnonzero(broken)[:_MOST_NAMED]
    ]
    if count > _MOST_NAMED:
        rows.append(f"  ... and {count - _MOST_NAMED} more")
    return (
        f"the paper's noise does not keep the promise of {count} {clients} "
        f"({contract.sampler} batches, {contract.neighbours} neighbours):\n"
        + "\n".join(rows)
        + "\nUse the guard 'lift' to give them the tight noise, or the accountant 'tight'."
    )


# How fast each client's noise grows with its draws: the costs that selection weighs.
#
# The noise variance of one draw, in units of C^2 and on the mean of the batch, is modelled as
# ``floor + level * T^l * T_k`` for a client drawn T_k times. The paper's formula is exactly of this
# form with floor 0 and level V_k. For the tight accountant the line goes through two calibrations,
# at one draw and at twice the draws of unbiased selection.

#: Above this many clients the line comes from the central limit theorem: calibrating a million
#: clients twice would take minutes and change the probabilities by little.
CALIBRATION_LIMIT = 20_000


def noise_levels(
    *,
    epsilon: FloatArray,
    delta: FloatArray,
    public: BoolArray,
    sizes: IntArray,
    batch_sizes: IntArray,
    expected_draws: FloatArray,
    local_steps: int,
    contract: Contract,
    calibrated: bool = True,
) -> tuple[FloatArray, FloatArray]:
    """Noise variance of a draw on the batch mean, in units of C^2, as ``level T^l T_k + floor``.

    Args:
        epsilon: budgets; ignored where ``public``.
        delta: budgets; ignored where ``public``.
        public: clients without a budget, whose noise is 0.
        sizes: records of each client.
        batch_sizes: expected batch B of each client.
        expected_draws: draws of each client under unbiased selection.
        local_steps: T^l.
        contract: which accountant, sampler and neighbours.
        calibrated: fit the line to calibrations; otherwise, and for more than
            ``CALIBRATION_LIMIT`` clients, use the limit of many steps.

    Returns:
        The level V_k, per local step taken over the whole training, and the floor, what even the
        first step costs, which is 0 in the paper's formula. Both are 0 for public clients.

    Example:
        >>> level, floor = noise_levels(
        ...     epsilon=np.array([1.0, 4.0]), delta=np.array([1e-5, 1e-5]),
        ...     public=np.array([False, False]), sizes=np.array([600, 600]),
        ...     batch_sizes=np.array([60, 60]), expected_draws=np.array([10.0, 10.0]),
        ...     local_steps=1, contract=Contract.of("tight"))
        >>> bool(level[0] > level[1])
        True
    """
    level = np.zeros(len(sizes))
    floor = np.zeros(len(sizes))
    private = ~public
    eps, dlt = epsilon[private], delta[private]
    size, batch = sizes[private].astype(np.float64), batch_sizes[private].astype(np.float64)
    if contract.accountant == "paper":
        level[private] = paper_noise_level(
            epsilon=eps, delta=dlt, sampling_rate=batch / size, size=size
        )
    elif calibrated and eps.size <= CALIBRATION_LIMIT:
        # The line goes through one draw and twice the expected draws.
        few = np.full(eps.size, local_steps, dtype=np.int64)
        many = few * np.maximum(2, np.ceil(2 * expected_draws[private])).astype(np.int64)
        z = calibrate_noise(
            epsilon=eps,
            delta=dlt,
            sampling_rate=contract.sampler.rates(sizes[private], batch_sizes[private]),
            steps=np.stack([few, many]),
            **contract.sampling(local_steps),
        )
        variance_few, variance_many = (z / batch) ** 2
        slope = (variance_many - variance_few) / (many - few)
        start = variance_few - slope * few
        # Where the variance grows faster than a line, a line through the origin stays above it.
        level[private] = np.where(start < 0, variance_many / many, slope)
        floor[private] = np.maximum(start, 0)
    else:
        # z^2 = 1 / ln(1 + mu^2 / (r^2 T)) = r^2 T / mu^2 + 1/2 - ... as T grows.
        mu = gaussian_mu(epsilon=eps, delta=dlt)
        level[private] = (contract.sensitivity / (size * mu)) ** 2
        floor[private] = 0.5 * (contract.sensitivity / batch) ** 2
    return level, floor
