# SPDX-License-Identifier: Apache-2.0
"""``tune_charged``: settings chosen on the clients' records, and paid for.

Random search with a random number of trials (Papernot and Steinke, "Hyperparameter tuning with
Rényi differential privacy", 2022): settings are drawn from a public distribution, a model is
trained with each, and only the best settings come out. Trials use whole clients, so that a trial is
one Gaussian mechanism for every record of a client, whatever was drawn: noise of all steps
together, μ_k. A record is either trained on or scored on, and a score has the noise of the same
μ_k, or looks at public records alone. The number of trials follows the logarithmic distribution,
and dp-accounting's ``RepeatAndSelectDpEvent`` says what all of it spends; μ_k is the largest for
which that is within the share of the client's budget. The rest of the budget is for the training,
by simple composition.

The time it takes tells how many trials there were, which the proof does not allow to be seen.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import GaussianDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, number
from dpcohort.accounting import Charge, gaussian_delta
from dpcohort.accounting._charges import charge_of
from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.data._dataset import simulation_seed
from dpcohort.engine import Lattice
from dpcohort.engine._lattice import KEY_BYTES
from dpcohort.errors import BudgetExceededError, DivergedError, InputError
from dpcohort.progress import Progress, silent
from dpcohort.runs import (
    Job,
    configured_data,
    configured_job,
    configured_population,
    held_out_within,
)
from dpcohort.runs._config_clients import configured_charges, promised_population
from dpcohort.runs._prediction import model_outputs
from dpcohort.runs._provenance import TUNING_SOURCES
from dpcohort.runs._training import train_job
from dpcohort.tuning._search import Tuned, counted, score_of, start_of
from dpcohort.tuning._settings import Settings, changes_for

#: Share of each client's records that trials are scored on where no public record is there.
_HELD_OUT = 0.2
#: Shape of the logarithmic distribution, the cheapest of those with a proof.
_LOGARITHMIC = 0.0
_MOST_TRIALS = 1000.0
#: Nobody lives to see so many trials; the chance of it is below every delta.
_LARGEST_COUNT = 1_000_000
_ORDERS = tuple(1.0 + 10.0**power for power in np.linspace(-1.5, 3.0, 90).tolist())
#: Below this, noise has so little to say that nothing can be chosen by it.
_LEAST_MU = 1e-4


@lru_cache(maxsize=4096)
def selection_mu(epsilon: float, delta: float, *, trials: float) -> float:
    """The largest μ of a Gaussian mechanism that may be repeated and its best result released.

    Args:
        epsilon: what all of it may spend.
        delta: at this delta.
        trials: repetitions on average.

    Example:
        >>> from dpcohort.accounting import gaussian_mu
        >>> alone = gaussian_mu(epsilon=1.0, delta=1e-5)
        >>> round(alone / selection_mu(1.0, 1e-5, trials=10.0), 2)
        1.88
    """
    number("trials", trials, above=1, at_most=_MOST_TRIALS)
    high = 1.0
    while selection_epsilon(high, delta, trials=trials) < epsilon and high < 1e3:
        high *= 2.0
    return _largest(lambda mu: selection_epsilon(mu, delta, trials=trials) <= epsilon, high, 40)


def _largest(holds: Callable[[float], bool], high: float, halvings: int) -> float:
    """The largest number up to ``high`` for which something holds, by bisection, from below."""
    low = 0.0
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def selection_epsilon(mu: float, delta: float, *, trials: float) -> float:
    """What repeating a Gaussian mechanism and releasing its best result spends, by dp-accounting.

    Example:
        >>> selection_epsilon(0.1, 1e-5, trials=10.0) > selection_epsilon(0.05, 1e-5, trials=10.0)
        True
    """
    accountant = RdpAccountant(orders=list(_ORDERS))
    accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(1.0 / mu), trials, _LOGARITHMIC))
    return float(accountant.get_epsilon(delta))


def draw_trials(trials: float, dice: random.Random) -> int:
    """A number of trials of the logarithmic distribution with this mean; at least 1.

    Example:
        >>> dice = random.Random(0)
        >>> bool(abs(np.mean([draw_trials(10.0, dice) for _ in range(20_000)]) - 10) < 0.6)
        True
    """
    low, high = 1e-12, 1.0 - 1e-12  # gamma: mean = (1/gamma - 1) / log(1/gamma), falling
    for _ in range(200):
        gamma = math.sqrt(low * high)
        if (1.0 / gamma - 1.0) / math.log(1.0 / gamma) > trials:
            low = gamma
        else:
            high = gamma
    p = 1.0 - math.sqrt(low * high)
    left, count, chance = dice.random(), 1, -p / math.log1p(-p)
    while left > chance and count < _LARGEST_COUNT:
        left -= chance
        chance *= p * count / (count + 1)
        count += 1
    return count


def tune_charged(
    config: Config,
    *,
    share: float = 0.5,
    trials: float = 10.0,
    public_test: bool = False,
    most_rounds: int = 200,
    before_spending: Callable[[Charge], object] = lambda charge: None,
    device: str | None = None,
    progress: Progress = silent,
) -> Tuned:
    """Choose rounds, clip, step and η on the clients' records, within a share of each budget.

    Args:
        config: with data, tight accounting and batches by Poisson sampling. Everything random is
            from the operating system's entropy, unless it asks for a simulation or its data are
            public.
        share: of the epsilon and delta that each client has left that may be spent on it.
        trials: on average; their number is random.
        public_test: the test records are public and score the trials; otherwise a fifth of each
            client's records does, and what they say has noise.
        most_rounds: the most to try.
        before_spending: called once everything is checked, before the first trial: the place to
            write down what will be spent.
        device: instead of the configuration's.
        progress: told that it goes on; how many trials there are it does not say.

    Raises:
        BudgetExceededError: a client's share is too small to choose anything with.
        InputError: there is no data, or the configuration does not go with it.
    """
    number("share", share, above=0, below=1)
    number("trials", trials, above=1, at_most=_MOST_TRIALS)
    _refuse_what_does_not_fit(config)
    data = configured_data(config)
    config = counted(config, data)
    seed = simulation_seed(config.run.simulate, public=data.public, seed=config.run.seed)
    whole, population = promised_population(config, data), configured_population(config, data)
    charge = charge_of(
        whole,
        configured_charges(config),
        lambda epsilon, delta: (share * epsilon, share * delta),
        what="tuning",
        private=seed is None,
        contract=config.contract,
    )
    given: dict[str, Any] = {}
    if not public_test and not data.task.predicts_classes:
        raise InputError.because(
            f"a trial of {data.task.kind} has no charged score: say that the test records are "
            "public with --public test, or take --source none."
        )
    data = replace(data, test_public=public_test)
    if not public_test:
        data, rest, given["partition"] = held_out_within(config, data, _HELD_OUT)
        held = population.sizes - rest.sizes
    else:
        rest, held = population, np.zeros(len(population), dtype=np.int64)
    mu = _affordable(population, share, trials)
    given["population"] = _trial_budgets(rest, mu, share)
    dice = secrets.SystemRandom() if seed is None else random.Random(seed)
    start = start_of(config, data, population, most_rounds)
    count = draw_trials(trials, dice)
    best, best_score = None, -math.inf

    def score_of_trial(settings: Settings, shift: int) -> float:
        """Train once and score, both within μ_k for every client; nothing of it is written."""
        changes = changes_for(settings, config, given["population"])
        once = [f"run.evaluate_every={settings.rounds}", "run.merged_noise=false"]
        job = configured_job(
            config.with_overrides(changes).with_overrides(once),
            data=data,
            shift=shift,
            device=device,
            **given,
        )
        check_trial(job, mu, sensitivity=config.contract.sensitivity)
        try:
            run = train_job(job)
        except DivergedError:
            return -math.inf
        if not held.any():
            return score_of(run, data)
        # SENSITIVE: whether the model is right about each held-out record.
        outputs = model_outputs(run, data.test_inputs, model=job.model, isolated=seed is None)
        raw_correct = run.task.predictions(outputs) == data.test_labels
        return _noisy_accuracy(raw_correct, mu, held, None if seed is None else dice)

    before_spending(charge)
    progress("trials, their number is not told", 0, 1)
    for shift in range(count):
        settings = _drawn(dice, start, most_rounds)
        score = score_of_trial(settings, shift)
        if best is None or score > best_score:
            best, best_score = settings, score
    progress("trials, their number is not told", 1, 1)
    assert best is not None
    left = population.with_scaled_budgets(1.0 - share, 1.0 - share)
    return Tuned(
        settings=best,
        changes=tuple(changes_for(best, config, left)),
        tried={best: ()},
        source="charged",
        words=TUNING_SOURCES["charged"],
        charge=charge,
    )


def _refuse_what_does_not_fit(config: Config) -> None:
    if config.contract.accountant != "tight" or config.contract.sampler.name != "poisson":
        raise InputError.because(
            "charged tuning is proved for privacy.accountant = tight with sampler = poisson. "
            "Take --source none, which spends nothing, or change it."
        )
    if config.contract.is_distributed:
        raise InputError.because(
            "charged tuning is proved for privacy.trust = local: a trial is scored by every client "
            "for itself. Take --source none, which spends nothing."
        )
    if config.is_adaptive:
        raise InputError.because(
            f"the rule {config.rule} asks clients for reports, which charged tuning does not "
            "count. Take --source none, which spends nothing."
        )
    if config.data is not None and config.data.public_share > 0:
        raise InputError.because(
            "data.public_share makes public records of some: take --source public, which spends "
            "nothing."
        )


def _affordable(population: Population, share: float, trials: float) -> FloatArray:
    """μ_k of a trial for each client; infinite for public ones."""
    mu = np.full(len(population), math.inf)
    for k in np.flatnonzero(~population.public).tolist():
        epsilon, delta = float(population.epsilon[k]), float(population.delta[k])
        mu[k] = selection_mu(share * epsilon, share * delta, trials=trials)
        if mu[k] < _LEAST_MU:
            raise BudgetExceededError(
                f"{population.ids[k]!r} has epsilon {epsilon:g}, and tuning may spend "
                f"{share * epsilon:.3g} of it at delta {share * delta:.3g}: too little for "
                f"{trials:g} trials. Raise --share, ask for fewer --trials, or take --source none, "
                "which spends nothing."
            )
    return mu


def _trial_budgets(population: Population, mu: FloatArray, share: float) -> Population:
    """The clients with the budgets of one trial: the epsilon of μ_k at the delta of the tuning."""
    factors = np.ones(len(population))
    for k in np.flatnonzero(~population.public).tolist():
        epsilon = _gaussian_epsilon(float(mu[k]), share * float(population.delta[k]))
        factors[k] = epsilon / float(population.epsilon[k])
    return population.with_scaled_budgets(factors, share)


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a μ-Gaussian mechanism at delta, from below."""
    high = 1.0
    while gaussian_delta(epsilon=high, mu=mu) > delta:
        high *= 2.0
    return _largest(lambda epsilon: gaussian_delta(epsilon=epsilon, mu=mu) > delta, high, 60)


def _drawn(dice: random.Random, start: Settings, most_rounds: int) -> Settings:
    """Settings from a public distribution around where a search without records begins."""
    rounds = [min(most_rounds, max(1, round(start.rounds * f))) for f in (0.5, 1.0, 2.0)]
    return replace(
        start,
        rounds=dice.choice(rounds),
        path=float(f"{start.path * 10.0 ** dice.uniform(-1.0, 1.0):.2g}"),
        clip=dice.choice([0.1, 0.3, 1.0]),
        lean=None if start.lean is None else round(dice.uniform(0.5, 1.0), 2),
    )


def check_trial(job: Job, mu: FloatArray, *, sensitivity: float) -> None:
    """Refuse a trial that would spend more of a client than one Gaussian mechanism of its μ_k.

    Raises:
        BudgetExceededError: with the client and both numbers.
    """
    plan = job.plan
    spends = (
        sensitivity * np.sqrt(plan.steps) / np.where(plan.steps > 0, plan.noise_multipliers, 1.0)
    )
    over = (spends > mu * (1.0 + 1e-9)) & (plan.steps > 0) & ~plan.population.public
    sampled = (plan.sampling_rates < 1.0) & (plan.steps > 0) & ~plan.population.public
    for k in np.flatnonzero(over | sampled).tolist():
        raise BudgetExceededError(
            f"a trial would spend mu = {spends[k]:.6g} of {plan.population.ids[k]!r}, and tuning "
            f"may spend {mu[k]:.6g}. Raise --share, or take --source none, which spends nothing."
        )


def _noisy_accuracy(
    raw_correct: NDArray[Any], mu: FloatArray, held: Any, dice: random.Random | None
) -> float:
    """Accuracy on held-out records: each client's count with noise, weighed by what it can tell.

    Args:
        raw_correct: one number from 0 to 1 a record, client after client.
        mu: of each client; infinite for public ones, whose counts have no noise.
        held: held-out records of each client.
        dice: of a simulation; None takes the noise from the operating system, on a lattice.
    """
    total, weights, start = 0.0, 0.0, 0
    for k in np.flatnonzero(held).tolist():
        records = raw_correct[start : start + int(held[k])].astype(np.float64)
        start += int(held[k])
        std = 1.0 / float(mu[k])  # one record changes a count by at most 1
        if std == 0.0:
            counted = float(records.sum())
        elif dice is None:
            lattice = Lattice(std, 1.0)
            raw_sum = lattice.clipped_sum(torch.as_tensor(records)[:, None])
            counted = float(lattice.release(raw_sum, secrets.token_bytes(KEY_BYTES), scale=1.0)[0])
        else:
            counted = float(records.sum()) + dice.gauss(0.0, std)
        weight = 1.0 / ((std / held[k]) ** 2 + 0.25 / held[k])
        total, weights = total + weight * counted / held[k], weights + weight
    return float(total / weights)
