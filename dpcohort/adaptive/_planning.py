# SPDX-License-Identifier: Apache-2.0
"""Adaptive plans: caps for every client, and noise that keeps each budget when they are reached.

Caps say how often a client may be drawn and asked. They are fixed before training and never
exceeded. Within them the server may draw and ask in any order and stop whenever it likes, and may
decide so from earlier outputs: see docs/concepts/adaptive.md for the proof.

Reports get the share s of the budget: with µ the parameter of the Gaussian mechanism that spends
exactly (ε_k, δ_k), R reports get noise for s µ². The noise of the training steps is then the
smallest for which all R reports composed with all cap · T^l steps stay within (ε_k, δ_k); that
composition is the pessimistic privacy-loss distribution, not a sum of epsilons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Unpack, get_args

import numpy as np

from dpcohort._validate import FloatArray, IntArray, choice, whole_number
from dpcohort.accounting import (
    Contract,
    Event,
    History,
    calibrate_noise,
    deploy_noise,
    gaussian_mu,
    paper_noise_multiplier,
)
from dpcohort.accounting._contract import Guard
from dpcohort.accounting._deployed_noise import DeployedNoise, noise_after
from dpcohort.accounting._distributed import adaptive_under_distributed_trust
from dpcohort.adaptive._rule import AdaptiveRule, ReportMode, ReportTerms
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.plan import (
    CappedRule,
    Certificate,
    LocalNoise,
    Past,
    Plan,
    PlanFrame,
    PlanOptions,
    Reports,
)
from dpcohort.plugins import check_members, make_rule, naming_the_rule
from dpcohort.progress import Progress, silent
from dpcohort.training import Training


def make_adaptive_plan(
    population: Population,
    training: Training,
    *,
    rule: str | AdaptiveRule = "power-of-choice",
    rule_settings: Mapping[str, Any] | None = None,
    reports: ReportMode | str = "private",
    report_share: float = 0.1,
    report_cap: int | str = "auto",
    participation_cap: int | str = "auto",
    loss_bound: float = 5.0,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Fix caps and terms, calibrate the noise to them and certify it.

    Args:
        population: clients with sizes and whole budgets.
        training: rounds, cohort size, batch, clip and model dimension.
        rule: an adaptive rule, or the name of one.
        rule_settings: of a rule given by name.
        reports: ``private`` (noised and charged) or ``raw`` (stamps the run NOT PRIVATE).
        report_share: of each budget that reports may take, in (0, 1).
        report_cap: reports of a client, at most; ``auto`` is what the rule expects.
        participation_cap: draws of a client, at most; ``auto`` is twice the mean.
        loss_bound: to which each record's loss is clipped in a report.
        options: those of every plan, all with defaults: `PlanOptions` has the list.

    Raises:
        InputError: an unknown rule (the nearest name is suggested) or setting, a cap, d, number of
            clusters or share out of range.
        BudgetExceededError: noise that does not keep a promise.

    Example:
        >>> people = Population.from_arrays(sizes=[600] * 8, epsilon=[2.0] * 8, delta=1e-5)
        >>> settings = Training(rounds=8, cohort_size=2, batch_size=60)
        >>> plan = make_adaptive_plan(people, settings, rule_settings={"d": 4}, seed=0)
        >>> int(plan.counts[0]), int(plan.reports.caps[0])
        (4, 8)
        >>> bool((plan.certified_epsilon <= people.epsilon).all())
        True
    """
    frame = PlanFrame.of(population, options)
    population, contract, past = frame.population, frame.contract, frame.past
    choice("reports", reports, get_args(ReportMode))
    chosen: AdaptiveRule
    if isinstance(rule, str):
        chosen = make_rule("adaptive", rule, dict(rule_settings or {}))
    else:
        check_members("adaptive", rule, rule)
        chosen = rule
    if contract.is_distributed:
        raise adaptive_under_distributed_trust(chosen.name)
    terms = None
    if chosen.statistic is not None:
        terms = ReportTerms(
            statistic=chosen.statistic,
            loss_bound=loss_bound,
            mini_batch=chosen.mini_batch,
            mode="raw" if reports == "raw" else "private",
            share=report_share,
        )
    draw_caps, report_caps = make_caps(
        population, training, chosen, participation_cap=participation_cap, report_cap=report_cap
    )
    (noise, certified, lifted), report_multipliers = _capped_noise(
        population,
        training,
        contract=contract,
        draw_caps=draw_caps,
        report_caps=report_caps,
        terms=terms,
        guard=frame.guard,
        progress=frame.progress,
        before=past,
    )
    plan = Plan(
        population=population,
        training=training,
        contract=contract,
        participation=CappedRule(
            rule=chosen,
            settings=_settings(chosen),
            counts=draw_caps,
            reports=Reports.of(terms, report_caps, report_multipliers),
        ),
        noise=LocalNoise(multipliers=noise, lifted=lifted),
        certificate=Certificate(epsilon=certified),
        seed=frame.seed,
        past=past,
    )
    plan._mark_certified()
    return plan


def _settings(rule: Any) -> dict[str, Any]:
    if is_dataclass(rule) and not isinstance(rule, type):
        return {field.name: getattr(rule, field.name) for field in fields(rule)}
    return {}


def make_caps(
    population: Population,
    training: Training,
    rule: AdaptiveRule,
    *,
    participation_cap: int | str = "auto",
    report_cap: int | str = "auto",
) -> tuple[IntArray, IntArray]:
    """How often each client may be drawn, and how often asked.

    Args:
        population: the clients; public ones have no cap but the number of draws there are.
        training: rounds T and cohort size K.
        rule: says how many reports it expects.
        participation_cap: draws a client; ``auto`` is ⌈2 T K / N⌉, twice the mean, at most T.
        report_cap: reports a client; ``auto`` is what the rule expects.

    Raises:
        InputError: a cap below 1, or caps that all together cannot hold T K draws.

    Example:
        >>> from dpcohort.adaptive._rules import PowerOfChoice
        >>> people = Population.from_arrays(sizes=[90] * 20, epsilon=1.0, delta=1e-5)
        >>> drawn, asked = make_caps(people, Training(rounds=50, cohort_size=2), PowerOfChoice(d=4))
        >>> int(drawn[0]), int(asked[0])
        (10, 20)
    """
    clients, total = len(population), training.total_draws
    with naming_the_rule(rule, "check"):
        rule.check(clients, training.cohort_size, int(population.public.sum()))
    if participation_cap == "auto":
        draw_cap = max(1, min(training.rounds, -(-2 * total // clients)))
        if draw_cap * clients < total:  # fewer clients than draws in a round
            draw_cap = -(-total // clients)
    else:
        draw_cap = _given("participation_cap", participation_cap)
    if rule.statistic is None:
        asked = 0
    elif report_cap == "auto":
        with naming_the_rule(rule, "expected_reports"):
            asked = max(1, rule.expected_reports(clients, training.rounds, draw_cap))
    else:
        asked = _given("report_cap", report_cap)
    draws = np.where(population.public, total, draw_cap).astype(np.int64)
    if int(draws.sum()) < total:
        needed = -(-total // clients)
        raise InputError(
            "participation_cap",
            given=participation_cap,
            allowed=f"at least {needed} for {training.rounds} rounds of {training.cohort_size} "
            f"draws among {clients} clients",
            next_step="Raise it, or train for fewer rounds.",
        )
    reports = np.where(population.public, training.rounds, asked).astype(np.int64)
    return draws, reports


def _given(field: str, value: int | str) -> int:
    if isinstance(value, str):
        raise InputError(field, given=value, allowed="'auto' or a whole number of at least 1")
    return whole_number(field, value, at_least=1)


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


def _capped_noise(
    population: Population,
    training: Training,
    *,
    contract: Contract,
    draw_caps: IntArray,
    report_caps: IntArray,
    terms: ReportTerms | None,
    guard: Guard = "refuse",
    progress: Progress = silent,
    before: Past = Past.none,
) -> tuple[DeployedNoise, FloatArray]:
    """The noise of every client, certified at its caps, and the noise multipliers of reports.

    Raises:
        BudgetExceededError: noise that does not keep a promise; the client is named.
    """
    rates = contract.sampler.rates(population.sizes, population.batches(training))
    steps, sampling = draw_caps * training.local_steps, contract.sampling(training.local_steps)
    before.check(population, contract, training.cohort_size)
    left, past = before.left(population), before.histories(population)
    if terms is None or terms.mode == "raw":
        deployed = deploy_noise(
            population,
            calibrated_epsilon=left.epsilon,
            sampling_rates=rates,
            steps=steps,
            contract=contract,
            local_steps=training.local_steps,
            guard=guard,
            progress=progress,
            past=past,
        )
        return deployed, np.zeros(len(population))
    held = np.flatnonzero(~population.public)
    share, report_rates = terms.share, rates if terms.mini_batch else np.ones(len(population))
    # The search for z begins at the noise for the whole budget, scaled as a Gaussian's.
    columns = {"epsilon": left.epsilon, "delta": left.delta, "sampling_rate": rates, "steps": steps}
    budgets: Any = {name: column[held] for name, column in columns.items()}
    guesses = np.full(len(population), np.nan)
    if contract.accountant == "paper":
        guesses[held] = paper_noise_multiplier(**budgets)
    else:
        alone = calibrate_noise(**budgets, **sampling)
        guesses[held] = alone / math.sqrt(1 - share)

    def noise_of(k: int) -> tuple[float, float, float, bool]:
        """(z, z of a report, certified epsilon, lifted); reports share what is left."""
        name, guess = population.ids[k], float(guesses[k])
        epsilon, delta = float(population.epsilon[k]), float(population.delta[k])
        report = report_noise(
            epsilon=float(left.epsilon[k]),
            delta=delta,
            share=share,
            reports=int(report_caps[k]),
            rate=float(report_rates[k]),
            contract=contract,
        )

        def event(z: float, rate: float, count: int) -> Event:
            of_one: Any = {"sampling_rate": float(rate), "steps": int(count)}
            return Event.of(noise_multiplier=z, **of_one, **sampling)

        earlier = past[k] if past else History()
        earlier = earlier.append(event(report, report_rates[k], report_caps[k]))
        to_come = event(guess, rates[k], steps[k])
        if contract.accountant == "paper":
            spent = earlier.append(to_come).epsilon(delta)
            if spent <= epsilon:
                return guess, report, spent, False
            if guard == "refuse":
                raise BudgetExceededError(
                    f"the paper's noise does not keep the promise of {name!r} together with its "
                    f"reports: it spends epsilon {spent:.4g} and promised {epsilon:.4g} "
                    f"({steps[k]} steps, {report_caps[k]} reports). Use the guard 'lift' to give "
                    "it the tight noise, a smaller report_share, or the accountant 'tight'."
                )
        z, spent = noise_after(name, earlier, to_come, epsilon=epsilon, delta=delta)
        return z, report, spent, contract.accountant == "paper"

    # Clients that have all of this in common have the same noise.
    alike = (population.epsilon, population.delta, rates, steps, report_caps, past)
    known: dict[tuple[Any, ...], tuple[float, float, float, bool]] = {}
    found = [np.where(population.public, start, 0.0) for start in (0.0, 0.0, np.nan, 0.0)]
    for done, k in enumerate(held.tolist()):
        progress("certifying", done, held.size)
        key = tuple(values[k] for values in alike if len(values))
        if key not in known:
            known[key] = noise_of(k)
        for column, value in zip(found, known[key], strict=True):
            column[k] = value
    progress("certifying", held.size, held.size)
    noise, report, certified, lifted = found
    return (noise, certified, lifted.astype(np.bool_)), report
