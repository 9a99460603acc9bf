# SPDX-License-Identifier: Apache-2.0
"""The adaptive plan: all that is fixed before training when cohorts are chosen on the way.

Population, training, contract, rule, caps, terms of reports and noise are frozen and hashed. What
is left open is who is drawn when: that the rule decides round by round, within the caps.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray, choice, whole_number
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.deployed_noise import Guard
from dpcohort.accounting.events import Event, History
from dpcohort.adaptive.capped_noise import CappedNoise, calibrate_capped_noise
from dpcohort.adaptive.caps import Caps, make_caps
from dpcohort.adaptive.report_terms import ReportMode, ReportTerms
from dpcohort.adaptive.rule import AdaptiveRule
from dpcohort.adaptive.second_opinion import history_epsilon
from dpcohort.adaptive.undecided import UndecidedSchedule, UndecidedSelection
from dpcohort.certified_plan import CertifiedPlan
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.plugins import REGISTRIES
from dpcohort.progress import Progress, silent
from dpcohort.training import Training

__all__ = ["AdaptivePlan", "make_adaptive_plan"]


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptivePlan(CertifiedPlan):
    """Who may take part how often, with how much noise, and what that is certified to spend.

    Attributes:
        population: the clients and their budgets.
        training: rounds, cohort size, clip and the rest.
        contract: sampler, neighbours and accountant.
        rule: what chooses each cohort.
        terms: of the reports; None if the rule asks for none.
        caps: draws and reports of each client, at most.
        noise: of training steps and reports.
        seed: of the rule's dice. It is public: batches and noise never use it in a deployment.
    """

    rule: AdaptiveRule
    terms: ReportTerms | None
    caps: Caps
    noise: CappedNoise
    seed: int

    def __post_init__(self) -> None:
        clients = len(self.population)
        for name, length in (
            ("caps", self.caps.draws.size),
            ("noise", self.noise.noise_multiplier.size),
        ):
            if length != clients:
                raise InputError.because(
                    f"the {name} are for {length} clients but the population has {clients}."
                )
        silent_clients = ~self.population.public & ~(self.noise_multipliers > 0)
        if silent_clients.any():
            name = self.population.ids[int(np.flatnonzero(silent_clients)[0])]
            raise InputError.because(f"client {name!r} has a budget but no noise; plan again.")
        mute = ~self.population.public & ~(self.report_multipliers > 0)
        if self.has_private_reports and mute.any():
            name = self.population.ids[int(np.flatnonzero(mute)[0])]
            raise InputError.because(f"reports of client {name!r} have no noise; plan again.")

    @property
    def selection(self) -> UndecidedSelection:
        """The rule; who is drawn how often is not known before the training."""
        return UndecidedSelection(
            rule=self.rule_name, settings=self.rule_settings, unbiased=self.population.unbiased
        )

    @property
    def schedule(self) -> UndecidedSchedule:
        """The caps; the cohorts are chosen on the way."""
        return UndecidedSchedule(
            counts=self.caps.draws,
            rounds=self.training.rounds,
            cohort_size=self.training.cohort_size,
        )

    @property
    def rule_name(self) -> str:
        """What the rule is called."""
        return self.rule.name

    @property
    def rule_settings(self) -> dict[str, Any]:
        """The rule's settings in plain values."""
        return _settings(self.rule)

    @property
    def has_private_reports(self) -> bool:
        """Whether clients report, with noise and charged."""
        return self.terms is not None and self.terms.mode == "private"

    @property
    def has_raw_reports(self) -> bool:
        """Whether clients report without noise: nothing made with this plan is private."""
        return self.terms is not None and self.terms.mode == "raw"

    @property
    def noise_multipliers(self) -> FloatArray:
        """z_k of a training step; 0 for public clients."""
        return self.noise.noise_multiplier

    @property
    def report_multipliers(self) -> FloatArray:
        """Noise multiplier of a report; 0 for public clients and raw reports."""
        return self.noise.report_multiplier

    @property
    def report_rates(self) -> FloatArray:
        """Share of a client's records that a report looks at."""
        if self.terms is not None and self.terms.mini_batch:
            return self.sampling_rates
        return np.ones(len(self.population))

    @property
    def report_stds(self) -> FloatArray:
        """Noise on each client's reported mean, z t / (2 n)."""
        looked_at = self.report_rates * self.population.sizes
        half = 0.0 if self.terms is None else self.terms.half_range
        return self.report_multipliers * half / looked_at

    @property
    def certified_epsilon(self) -> FloatArray:
        """What each client has spent when it reaches both caps; NaN if public."""
        return self.noise.certified_epsilon

    @property
    def drawn(self) -> BoolArray:
        """Clients that may be drawn: all of them."""
        return np.ones(len(self.population), dtype=np.bool_)

    @cached_property
    def steps(self) -> IntArray:
        """Noisy steps of each client at its cap."""
        return self.caps.draws * self.training.local_steps

    @cached_property
    def noise_to_clip(self) -> float:
        """Norm of the noise on a round's mean gradient in units of C, if all are drawn alike."""
        per_draw = float(np.mean((self.noise_multipliers / self.batch_sizes) ** 2))
        return float(np.sqrt(self.training.dimension * per_draw / self.training.cohort_size))

    def history(self, client: int, *, draws: int, reports: int) -> History:
        """The events of a client that was drawn and asked so often."""
        events = [
            Event(
                noise_multiplier=float(self.noise_multipliers[client]),
                sampling_rate=float(self.sampling_rates[client]),
                steps=draws * self.training.local_steps,
                sampler=self.contract.sampler,
                neighbours=self.contract.neighbours,
            )
        ]
        if self.has_private_reports:
            events.append(
                Event(
                    noise_multiplier=float(self.report_multipliers[client]),
                    sampling_rate=float(self.report_rates[client]),
                    steps=reports,
                    sampler=self.contract.sampler,
                    neighbours=self.contract.neighbours,
                )
            )
        return History(tuple(events))

    def spent_epsilon(
        self, draws: IntArray, reports: IntArray, *, method: str = "pld"
    ) -> FloatArray:
        """Upper bound on what each client has spent with so many draws and reports.

        NaN for public clients. Raw reports are not in it: they cannot be bounded, and a run with
        them is stamped NOT PRIVATE.

        Args:
            draws: of each client.
            reports: of each client.
            method: as in ``certify_epsilon``. Where a bound is above the promise only because it
                rounds up, the smaller of two bounds is as valid and is taken.
        """
        spent = np.where(self.population.public, np.nan, 0.0)
        known: dict[tuple[History, float], float] = {}
        for k in np.flatnonzero(~self.population.public & ((draws > 0) | (reports > 0))).tolist():
            history = self.history(k, draws=int(draws[k]), reports=int(reports[k]))
            key = (history, float(self.population.delta[k]))
            if key not in known:
                known[key] = history_epsilon(*key, method)
            spent[k] = known[key]
            if not spent[k] <= self.population.epsilon[k]:
                spent[k] = np.fmin(spent[k], history.epsilon(key[1]))
        return spent

    def counts_to_certify(self, draws: IntArray, reports: IntArray) -> tuple[IntArray, IntArray]:
        """The draws and reports to certify for clients that were drawn and asked so often.

        Where cohorts follow from reports or updates, how often a client was heard depends on what
        it gave out: a rule can stop at the output that tells most, and the epsilon of a number
        chosen so is not proved (arXiv 2602.06756). That of the caps is. A client that gave nothing
        out spent nothing, and a rule that looks at no output has numbers as good as fixed.
        """
        if self.terms is None and not self.rule.watches_updates:
            return draws, reports
        heard = (draws > 0) | (reports > 0)
        return (
            np.where(heard, np.maximum(draws, self.caps.draws), 0),
            np.where(heard, np.maximum(reports, self.caps.reports), 0),
        )

    def verify(self, method: str = "pld") -> None:
        """Certify every client again at its caps.

        Args:
            method: as in ``certify_epsilon``.

        Raises:
            VerificationError: a client's noise does not keep its budget.
        """
        reports = self.caps.reports if self.has_private_reports else 0 * self.caps.reports
        certified = self.spent_epsilon(self.caps.draws, reports, method=method)
        held = ~self.population.public
        self._refuse_broken(held, certified[held], promised="promised at their caps")

    def plain_settings(self) -> dict[str, Any]:
        """All that is not a column, in plain values."""
        return {
            "training": asdict(self.training),
            "contract": asdict(self.contract),
            "rule": self.rule_name,
            "rule_settings": self.rule_settings,
            "reports": None if self.terms is None else asdict(self.terms),
            "seed": self.seed,
        }

    def hashed_columns(self) -> tuple[NDArray[Any], ...]:
        """Caps and noise."""
        return (
            self.caps.draws,
            self.caps.reports,
            self.noise_multipliers,
            self.report_multipliers,
            self.certified_epsilon,
            self.noise.lifted,
        )

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically."""
        from dpcohort.adaptive.plan_file import save_adaptive_plan

        save_adaptive_plan(self, path)

    @classmethod
    def load(cls, path: str | Path) -> AdaptivePlan:
        """Read a plan and check its hash."""
        from dpcohort.adaptive.plan_file import load_adaptive_plan

        return load_adaptive_plan(path)


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
    accountant: str | Contract = "tight",
    guard: str = "refuse",
    seed: int | None = None,
    progress: Progress = silent,
) -> AdaptivePlan:
    """Fix caps and terms, calibrate the noise to them and certify it.

    Args:
        population: clients with sizes and budgets.
        training: rounds, cohort size, batch, clip and model dimension.
        rule: an adaptive rule, or the name of one.
        rule_settings: of a rule given by name.
        reports: ``private`` (noised and charged) or ``raw`` (stamps the run NOT PRIVATE).
        report_share: of each budget that reports may take, in (0, 1).
        report_cap: reports of a client, at most; ``auto`` is what the rule expects.
        participation_cap: draws of a client, at most; ``auto`` is twice the mean.
        loss_bound: to which each record's loss is clipped in a report.
        accountant: ``tight``, ``paper``, or a whole ``Contract``.
        guard: what happens where the paper's noise does not certify: ``refuse`` or ``lift``.
        seed: of the rule's dice; drawn and recorded if not given.
        progress: told how many clients are certified.

    Raises:
        InputError: an unknown rule (the nearest name is suggested) or setting, a cap, d, number of
            clusters or share out of range.
        BudgetExceededError: noise that does not keep a promise.

    Example:
        >>> people = Population.from_arrays(sizes=[600] * 8, epsilon=[2.0] * 8, delta=1e-5)
        >>> settings = Training(rounds=8, cohort_size=2, batch_size=60)
        >>> plan = make_adaptive_plan(people, settings, rule_settings={"d": 4}, seed=0)
        >>> int(plan.caps.draws[0]), int(plan.caps.reports[0])
        (4, 8)
        >>> bool((plan.certified_epsilon <= people.epsilon).all())
        True
    """
    contract = accountant if isinstance(accountant, Contract) else Contract.of(accountant)
    choice("guard", guard, get_args(Guard))
    choice("reports", reports, get_args(ReportMode))
    chosen: AdaptiveRule
    if isinstance(rule, str):
        chosen = REGISTRIES["adaptive"].make(rule, dict(rule_settings or {}))
    else:
        REGISTRIES["adaptive"].check_members(rule, rule)
        chosen = rule
    seed = secrets.randbits(63) if seed is None else whole_number("seed", seed, at_least=0)
    terms = None
    if chosen.statistic is not None:
        terms = ReportTerms(
            statistic=chosen.statistic,
            loss_bound=loss_bound,
            mini_batch=chosen.mini_batch,
            mode="raw" if reports == "raw" else "private",
            share=report_share,
        )
    caps = make_caps(
        population,
        training,
        chosen,
        participation_cap=participation_cap,
        report_cap=report_cap,
    )
    noise = calibrate_capped_noise(
        population,
        training,
        contract=contract,
        caps=caps,
        terms=terms,
        guard="lift" if guard == "lift" else "refuse",
        progress=progress,
    )
    plan = AdaptivePlan(
        population=population,
        training=training,
        contract=contract,
        rule=chosen,
        terms=terms,
        caps=caps,
        noise=noise,
        seed=seed,
    )
    plan._mark_certified()
    return plan


def _settings(rule: Any) -> dict[str, Any]:
    recorded = getattr(rule, "settings", None)
    if isinstance(recorded, Mapping):  # of a rule that was read from a file
        return dict(recorded)
    if is_dataclass(rule) and not isinstance(rule, type):
        return {field.name: getattr(rule, field.name) for field in fields(rule)}
    return {}
