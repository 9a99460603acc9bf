# SPDX-License-Identifier: Apache-2.0
"""Noise of reports and of training steps that together keep each budget at the caps.

Reports get the share s of the budget: with µ the parameter of the Gaussian mechanism that spends
exactly (ε_k, δ_k), R reports get noise for s µ². The noise of the training steps is then the
smallest for which all R reports composed with all cap · T^l steps stay within (ε_k, δ_k); that
composition is the pessimistic privacy-loss distribution, not a sum of epsilons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.deployed_noise import Guard, deploy_noise
from dpcohort.accounting.events import Event, History, calibrate_remaining
from dpcohort.accounting.gaussian import gaussian_mu
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.accounting.tight import calibrate_noise
from dpcohort.adaptive.caps import Caps
from dpcohort.adaptive.report_terms import ReportTerms
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError
from dpcohort.progress import Progress, silent
from dpcohort.training import Training

__all__ = ["CappedNoise", "calibrate_capped_noise", "report_noise"]

_ACCURACY = 2e-4  # of log z, where the search stops
_TRIALS = 6
_RAISE = 2.5e-4
_RAISES = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class CappedNoise:
    """Per client, in the order of the population.

    Attributes:
        noise_multiplier: z of a training step; 0 for public clients.
        report_multiplier: z of a report; 0 for public clients, and for all where reports are raw
            or there are none.
        certified_epsilon: pessimistic epsilon at the client's delta when both caps are reached;
            NaN for public clients.
        lifted: clients whose paper noise did not certify and was replaced by the tight noise.
    """

    noise_multiplier: FloatArray
    report_multiplier: FloatArray
    certified_epsilon: FloatArray
    lifted: BoolArray

    def __post_init__(self) -> None:
        columns = (
            self.noise_multiplier,
            self.report_multiplier,
            self.certified_epsilon,
            self.lifted,
        )
        for column in columns:
            column.setflags(write=False)


def report_noise(
    *, epsilon: float, delta: float, share: float, reports: int, rate: float, contract: Contract
) -> float:
    """Noise multiplier of each of R reports that together take a share of a budget.

    R Gaussian releases with sensitivity c (1 zero-out, 2 replace-one, in units of the clip) have
    µ² = R c²/z². A mini-batch at rate r has about R r² (e^{c²/z²} − 1). Either is set to share · µ²
    of the budget. What the reports really take is composed and certified elsewhere.

    Example:
        >>> z = report_noise(epsilon=1.0, delta=1e-5, share=0.1, reports=10, rate=1.0,
        ...                  contract=Contract())
        >>> round(z, 1)
        37.3
    """
    squared = share * gaussian_mu(epsilon=epsilon, delta=delta) ** 2 / reports
    shift = squared if rate == 1 else math.log1p(squared / rate**2)
    return contract.sensitivity / math.sqrt(shift)


def calibrate_capped_noise(
    population: Population,
    training: Training,
    *,
    contract: Contract,
    caps: Caps,
    terms: ReportTerms | None,
    guard: Guard = "refuse",
    progress: Progress = silent,
) -> CappedNoise:
    """The noise of every client, certified at its caps.

    Args:
        population: the clients and their budgets.
        training: local steps and batches.
        contract: sampler, neighbours, accountant.
        caps: draws and reports.
        terms: of the reports; None if there are none.
        guard: what happens where the paper's noise does not certify.
        progress: told how many clients are certified.

    Raises:
        BudgetExceededError: noise that does not keep a promise; the client is named.
    """
    rates, steps = population.sampling_rates(training), caps.draws * training.local_steps
    zeros = np.zeros(len(population))
    if terms is None or terms.mode == "raw":
        deployed = deploy_noise(
            population,
            calibrated_epsilon=population.epsilon,
            sampling_rates=rates,
            steps=steps,
            contract=contract,
            guard=guard,
            progress=progress,
        )
        return CappedNoise(
            noise_multiplier=deployed.noise_multiplier.copy(),
            report_multiplier=zeros,
            certified_epsilon=deployed.certified_epsilon.copy(),
            lifted=deployed.lifted.copy(),
        )
    held = np.flatnonzero(~population.public)
    guesses = _guesses(population, held, rates, steps, contract, terms.share)
    known: dict[tuple[float, ...], tuple[float, float, float, bool]] = {}
    columns = [np.where(population.public, start, 0.0) for start in (0.0, 0.0, np.nan, 0.0)]
    for done, k in enumerate(held.tolist()):
        progress("certifying", done, held.size)
        client = _Client(
            name=population.ids[k],
            epsilon=float(population.epsilon[k]),
            delta=float(population.delta[k]),
            rate=float(rates[k]),
            report_rate=float(rates[k]) if terms.mini_batch else 1.0,
            steps=int(steps[k]),
            reports=int(caps.reports[k]),
        )
        if client.key not in known:
            known[client.key] = _noise_of(client, float(guesses[done]), contract, terms, guard)
        for column, value in zip(columns, known[client.key], strict=True):
            column[k] = value
    progress("certifying", held.size, held.size)
    return CappedNoise(
        noise_multiplier=columns[0],
        report_multiplier=columns[1],
        certified_epsilon=columns[2],
        lifted=columns[3].astype(np.bool_),
    )


@dataclass(frozen=True, kw_only=True)
class _Client:
    """What fixes the noise of one client."""

    name: str
    epsilon: float
    delta: float
    rate: float
    report_rate: float
    steps: int
    reports: int

    @property
    def key(self) -> tuple[float, ...]:
        return (
            self.epsilon,
            self.delta,
            self.rate,
            self.report_rate,
            self.steps,
            self.reports,
        )


def _guesses(
    population: Population,
    held: IntArray,
    rates: FloatArray,
    steps: IntArray,
    contract: Contract,
    share: float,
) -> FloatArray:
    """Where the search for z begins: the noise for the whole budget, scaled as a Gaussian's."""
    if contract.accountant == "paper":
        printed: FloatArray = paper_noise_multiplier(
            epsilon=population.epsilon[held],
            delta=population.delta[held],
            sampling_rate=rates[held],
            steps=steps[held],
        )
        return printed
    alone = calibrate_noise(
        epsilon=population.epsilon[held],
        delta=population.delta[held],
        sampling_rate=rates[held],
        steps=steps[held],
        sampler=contract.sampler,
        neighbours=contract.neighbours,
    )
    return np.asarray(alone / math.sqrt(1 - share))


def _noise_of(
    client: _Client, guess: float, contract: Contract, terms: ReportTerms, guard: Guard
) -> tuple[float, float, float, bool]:
    """(z, z of a report, certified epsilon, lifted) of one client."""
    report = report_noise(
        epsilon=client.epsilon,
        delta=client.delta,
        share=terms.share,
        reports=client.reports,
        rate=client.report_rate,
        contract=contract,
    )
    past = History((_event(report, client.report_rate, client.reports, contract),))
    if contract.accountant == "paper":
        spent = _with_training(past, client, guess, contract).epsilon(client.delta)
        if spent <= client.epsilon:
            return guess, report, spent, False
        if guard == "refuse":
            raise BudgetExceededError(
                f"the paper's noise does not keep the promise of {client.name!r} together with its "
                f"reports: it spends epsilon {spent:.4g} and promised {client.epsilon:.4g} "
                f"({client.steps} steps, {client.reports} reports). Use the guard 'lift' to give "
                "it the tight noise, a smaller report_share, or the accountant 'tight'."
            )
    z = _smallest_noise(past, client, guess, contract)
    for attempt in range(_RAISES):
        spent = _with_training(past, client, z, contract).epsilon(client.delta)
        if spent <= client.epsilon:
            return z, report, spent, contract.accountant == "paper"
        z *= 1 + _RAISE * 2**attempt
    raise BudgetExceededError(
        f"the noise of {client.name!r} could not be certified; its budget or delta is beyond what "
        "double precision can prove. Raise epsilon or delta."
    )


def _event(z: float, rate: float, steps: int, contract: Contract) -> Event:
    return Event(
        noise_multiplier=z,
        sampling_rate=rate,
        steps=steps,
        sampler=contract.sampler,
        neighbours=contract.neighbours,
    )


def _with_training(past: History, client: _Client, z: float, contract: Contract) -> History:
    return past.append(_event(z, client.rate, client.steps, contract))


def _smallest_noise(past: History, client: _Client, guess: float, contract: Contract) -> float:
    """About the smallest z that keeps the budget: a secant search from a good guess.

    What it gives is certified afterwards, so a poor answer costs a little noise and no privacy.
    """

    def excess(x: float) -> float:
        total = _with_training(past, client, math.exp(x), contract).delta(client.epsilon)
        return math.log(max(total, 1e-300)) - math.log(client.delta)

    before, at = math.log(guess), excess(math.log(guess))
    x = before + (0.01 if at > 0 else -0.01)
    for _ in range(_TRIALS):
        now = excess(x)
        if now == at:
            break
        step = -now * (x - before) / (now - at)
        before, at = x, now
        x += min(0.5, max(-0.5, step))
        if abs(step) < _ACCURACY:
            return math.exp(x + _ACCURACY / 2)
    return calibrate_remaining(
        past,
        epsilon=client.epsilon,
        delta=client.delta,
        sampling_rate=client.rate,
        steps=client.steps,
        sampler=contract.sampler,
        neighbours=contract.neighbours,
    )
