# SPDX-License-Identifier: Apache-2.0
"""The plan: everything decided before training, frozen.

Population, training settings, contract, selection, schedule and noise are in it, and with them a
certificate of each client's epsilon. Nothing random is left but the batches and the noise.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray, choice, whole_number
from dpcohort.accounting.certify import certify_epsilon
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.deployed_noise import (
    DeployedNoise,
    Guard,
    NoiseLevels,
    deploy_noise,
    noise_levels,
)
from dpcohort.certified_plan import CertifiedPlan
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.progress import Progress, silent
from dpcohort.schedule import Draws, Schedule, draw_schedule
from dpcohort.selection.problem import (
    PlannedRule,
    Selection,
    SelectionProblem,
    calibrated_epsilon,
    exact_costs,
    paper_costs,
    selected,
)
from dpcohort.selection.rules import rule_from_settings
from dpcohort.training import Training

if TYPE_CHECKING:
    from dpcohort.explain import Explanation

__all__ = [
    "ChangedClient",
    "NoiseModel",
    "Plan",
    "PlanComparison",
    "compare_plans",
    "make_plan",
    "selection_problem",
]


NoiseModel = Literal["exact", "paper"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(CertifiedPlan):
    """Who takes part when, with how much noise, and what that is certified to spend.

    Attributes:
        population: the clients and their budgets.
        training: rounds, cohort size, clip and the rest.
        contract: sampler, neighbours and accountant.
        noise_model: which expected noise the selection weighed.
        selection: the probabilities and the certificate of their optimality.
        schedule: all cohorts.
        noise: noise multiplier and certified epsilon of every client.
        seed: what the schedule was drawn from. It is public: batches and noise never use it in a
            deployment.
    """

    noise_model: NoiseModel
    selection: Selection
    schedule: Schedule
    noise: DeployedNoise
    seed: int

    def __post_init__(self) -> None:
        self.selection.probabilities.setflags(write=False)
        clients = len(self.population)
        for name, length in (
            ("selection", self.selection.probabilities.size),
            ("schedule", self.schedule.clients),
            ("noise", self.noise.noise_multiplier.size),
        ):
            if length != clients:
                raise InputError.because(
                    f"the {name} is for {length} clients but the population has {clients}."
                )
        if (self.schedule.rounds, self.schedule.cohort_size) != (
            self.training.rounds,
            self.training.cohort_size,
        ):
            raise InputError.because(
                f"the schedule has {self.schedule.rounds} rounds of {self.schedule.cohort_size} "
                f"draws but training asks for {self.training.rounds} of "
                f"{self.training.cohort_size}."
            )
        silent_clients = self.drawn & ~self.population.public & ~(self.noise_multipliers > 0)
        if silent_clients.any():
            name = self.population.ids[int(np.flatnonzero(silent_clients)[0])]
            raise InputError.because(
                f"client {name!r} is drawn and has a budget, but no noise; make the plan again."
            )

    @property
    def noise_multipliers(self) -> FloatArray:
        """z_k: std of the noise on the sum of clipped gradients, in units of C.

        0 for public clients; NaN for clients that are never drawn, so that using one by mistake
        spoils the model instead of sending its gradient without noise.
        """
        return self.noise.noise_multiplier

    @property
    def certified_epsilon(self) -> FloatArray:
        """What each client will have spent at its delta; 0 if never drawn, NaN if public."""
        return self.noise.certified_epsilon

    @cached_property
    def drawn(self) -> BoolArray:
        """Clients with at least one draw."""
        return self.schedule.counts > 0

    @cached_property
    def steps(self) -> IntArray:
        """Noisy steps of each client over the whole training, T_k T^l."""
        return self.schedule.counts * self.training.local_steps

    @cached_property
    def noise_to_clip(self) -> float:
        """Norm of the noise on one round's mean gradient, in units of C (root mean square)."""
        z = np.nan_to_num(self.noise_multipliers, nan=0.0)
        per_draw = (z / self.batch_sizes) ** 2
        mean_draw = float((self.schedule.counts * per_draw).sum()) / self.training.total_draws
        return float(np.sqrt(self.training.dimension * mean_draw / self.training.cohort_size))

    @property
    def problem(self) -> SelectionProblem:
        """What the rule weighed: noise costs against unbiased probabilities."""
        return self._selection_problem[0]

    @property
    def noise_levels(self) -> NoiseLevels:
        """How each client's noise grows with its draws, as the selection saw it."""
        return self._selection_problem[1]

    @cached_property
    def _selection_problem(self) -> tuple[SelectionProblem, NoiseLevels]:
        return selection_problem(
            self.population, self.training, contract=self.contract, noise_model=self.noise_model
        )

    def plain_settings(self) -> dict[str, Any]:
        """All that is not a column, in plain values."""
        return {
            "training": asdict(self.training),
            "contract": asdict(self.contract),
            "noise_model": self.noise_model,
            "selection": {
                "rule": self.selection.rule,
                "settings": dict(self.selection.settings),
                "eta": self.selection.eta,
                "objective": self.selection.objective,
                "lower_bound": self.selection.lower_bound,
                "gap": self.selection.gap,
            },
            "draws": self.schedule.draws,
            "seed": self.seed,
        }

    def hashed_columns(self) -> tuple[NDArray[Any], ...]:
        """Probabilities, cohorts and noise."""
        return (
            self.selection.probabilities,
            self.schedule.cohorts,
            self.noise_multipliers,
            self.certified_epsilon,
            self.noise.lifted,
        )

    def verify(self, method: str = "auto") -> None:
        """Check every promise again with an accountant that did not make the plan.

        Raises:
            VerificationError: a client's noise does not keep its budget; all are named.
        """
        held = self.drawn & ~self.population.public
        certified = certify_epsilon(
            noise_multiplier=self.noise_multipliers[held],
            delta=self.population.delta[held],
            sampling_rate=self.sampling_rates[held],
            steps=self.steps[held],
            sampler=self.contract.sampler,
            neighbours=self.contract.neighbours,
            method=method,
        )
        self._refuse_broken(held, certified, promised="promised")

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically."""
        from dpcohort.plan_file import save_plan

        save_plan(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan and check its hash and shapes."""
        from dpcohort.plan_file import load_plan

        return load_plan(path)

    def explain(self, client: str) -> Explanation:
        """Why this client has this probability and this noise, in words and numbers."""
        from dpcohort.explain import explain_client

        return explain_client(self, client)

    def compare(self, other: Plan) -> PlanComparison:
        """What differs between this plan and another for the same clients."""
        return compare_plans(self, other)


def make_plan(
    population: Population,
    training: Training,
    *,
    selection: str | PlannedRule = "privacy-aware",
    accountant: str | Contract = "tight",
    noise_model: str = "exact",
    draws: str = "systematic",
    guard: str = "refuse",
    seed: int | None = None,
    progress: Progress = silent,
) -> Plan:
    """Select, schedule, calibrate and certify (Algorithm 1, lines 1 to 4, and NoiseComputation).

    Args:
        population: clients with sizes and budgets.
        training: rounds, cohort size, batch, clip and model dimension.
        selection: a rule, or the name of one with its default settings.
        accountant: ``tight``, ``paper``, or a whole ``Contract``.
        noise_model: ``exact`` weighs the noise the schedule really adds, ``paper`` Σ p² V.
        draws: ``systematic`` or ``independent``.
        guard: what happens to a client whose paper noise does not certify: ``refuse`` the plan, or
            ``lift`` that client to the tight noise.
        seed: what the schedule is drawn from; drawn and recorded if not given.
        progress: told how far a plan for many clients has come.

    Example:
        >>> clients = Population.from_arrays(sizes=[600] * 4, epsilon=[0.1, 1, 4, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=60), seed=0)
        >>> bool((plan.certified_epsilon <= clients.epsilon).all())
        True
    """
    contract = accountant if isinstance(accountant, Contract) else Contract.of(accountant)
    rule = rule_from_settings(selection) if isinstance(selection, str) else selection
    choice("guard", guard, get_args(Guard))
    choice("draws", draws, get_args(Draws))
    seed = secrets.randbits(63) if seed is None else whole_number("seed", seed, at_least=0)
    problem, levels = selection_problem(
        population, training, contract=contract, noise_model=noise_model
    )
    chosen = selected(rule, problem)
    schedule = draw_schedule(
        chosen.probabilities,
        rounds=training.rounds,
        cohort_size=training.cohort_size,
        draws=draws,
        rng=np.random.default_rng([seed, _SCHEDULE_STREAM]),
    )
    noise = deploy_noise(
        population,
        calibrated_epsilon=calibrated_epsilon(rule, problem),
        sampling_rates=population.sampling_rates(training),
        steps=schedule.counts * training.local_steps,
        contract=contract,
        guard="lift" if guard == "lift" else "refuse",
        progress=progress,
    )
    plan = Plan(
        population=population,
        training=training,
        contract=contract,
        noise_model="exact" if noise_model == "exact" else "paper",
        selection=chosen,
        schedule=schedule,
        noise=noise,
        seed=seed,
    )
    # What was just computed need not be computed again; a plan read from a file computes it.
    plan.__dict__["_selection_problem"] = (problem, levels)
    plan._mark_certified()
    return plan


def selection_problem(
    population: Population, training: Training, *, contract: Contract, noise_model: str
) -> tuple[SelectionProblem, NoiseLevels]:
    """What a planned rule may look at, and the noise levels behind its costs."""
    choice("noise_model", noise_model, get_args(NoiseModel))
    unbiased = population.unbiased
    levels = noise_levels(
        epsilon=population.epsilon,
        delta=population.delta,
        public=population.public,
        sizes=population.sizes,
        batch_sizes=population.batches(training),
        expected_draws=unbiased * training.total_draws,
        local_steps=training.local_steps,
        contract=contract,
        calibrated=noise_model == "exact",
    )
    if noise_model == "exact":
        noise_costs, linear_costs = exact_costs(
            levels.level,
            levels.floor,
            dimension=training.dimension,
            total_draws=training.total_draws,
            local_steps=training.local_steps,
        )
    else:
        noise_costs, linear_costs = paper_costs(levels.level, dimension=training.dimension)
    problem = SelectionProblem(
        unbiased=unbiased,
        epsilon=population.epsilon,
        public=population.public,
        noise_costs=noise_costs,
        linear_costs=linear_costs,
        total_steps=training.total_steps,
        smoothness=training.smoothness,
    )
    return problem, levels


#: Keeps the schedule's stream apart from any other stream made of the same seed.
_SCHEDULE_STREAM = 1


@dataclass(frozen=True, kw_only=True)
class ChangedClient:
    """A client whose probability differs between two plans."""

    client: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class PlanComparison:
    """What differs between two plans for the same clients.

    Attributes:
        settings: each setting that differs, as (before, after).
        probability_distance: sum of absolute differences of the probabilities, from 0 to 2.
        changed: the clients whose probability changed most, largest first.
        noise_ratio: noise norm on a round's mean gradient, after over before.
        variance_ratio: median over clients drawn in both of the noise variance, after over before.
        excluded: clients drawn before but not after.
        included: clients drawn after but not before.
    """

    settings: dict[str, tuple[Any, Any]]
    probability_distance: float
    changed: tuple[ChangedClient, ...]
    noise_ratio: float
    variance_ratio: float
    excluded: int
    included: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """The comparison in plain sentences, one a line."""
        different = ", ".join(f"{k}: {a} -> {b}" for k, (a, b) in self.settings.items())
        lines = [
            f"Settings that differ: {different or 'none'}.",
            f"The noise on a round's mean gradient is {self.noise_ratio:.3g} times as large; a "
            f"client drawn in both adds {self.variance_ratio:.3g} times the variance (median).",
            f"{self.probability_distance / 2:.1%} of all draws move to other clients; "
            f"{self.excluded} clients are no longer drawn, {self.included} newly are.",
        ]
        lines += [f"  {c.client}: {c.before:.4g} -> {c.after:.4g}" for c in self.changed]
        return "\n".join(lines)


def compare_plans(before: Plan, after: Plan, *, shown: int = 5) -> PlanComparison:
    """Compare two plans for the same clients.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> training = Training(rounds=10, cohort_size=2, batch_size=50)
        >>> aware = make_plan(clients, training, seed=1)
        >>> plain = make_plan(clients, training, selection="unbiased", seed=1)
        >>> compare_plans(plain, aware).noise_ratio < 1
        True
    """
    if before.population.ids != after.population.ids:
        raise InputError.because(
            "the two plans are for different clients; compare plans of one population."
        )
    p, q = before.selection.probabilities, after.selection.probabilities
    largest = np.argsort(-np.abs(q - p), kind="stable")[:shown]
    both = before.drawn & after.drawn & ~before.population.public & ~after.population.public
    variance = (after.noise_multipliers[both] / after.batch_sizes[both]) ** 2
    variance /= (before.noise_multipliers[both] / before.batch_sizes[both]) ** 2
    settings_before, settings_after = _settings(before), _settings(after)
    return PlanComparison(
        settings={
            key: (settings_before.get(key), settings_after.get(key))
            for key in sorted(settings_before.keys() | settings_after.keys())
            if settings_before.get(key) != settings_after.get(key)
        },
        probability_distance=float(np.abs(q - p).sum()),
        changed=tuple(
            ChangedClient(client=before.population.ids[k], before=float(p[k]), after=float(q[k]))
            for k in largest
            if p[k] != q[k]
        ),
        noise_ratio=_ratio(after.noise_to_clip, before.noise_to_clip),
        variance_ratio=float(np.median(variance)) if variance.size else float("nan"),
        excluded=int((before.drawn & ~after.drawn).sum()),
        included=int((after.drawn & ~before.drawn).sum()),
    )


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        **{f"training.{key}": value for key, value in asdict(plan.training).items()},
        **{f"privacy.{key}": value for key, value in asdict(plan.contract).items()},
        "selection.rule": plan.selection.rule,
        "selection.noise_model": plan.noise_model,
        **{f"selection.{key}": value for key, value in plan.selection.settings.items()},
        "schedule.draws": plan.schedule.draws,
        "schedule.seed": plan.seed,
    }


def _ratio(after: float, before: float) -> float:
    return after / before if before > 0 else (1.0 if after == 0 else float("inf"))
