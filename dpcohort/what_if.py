# SPDX-License-Identifier: Apache-2.0
"""What a plan would become if one setting were different, without drawing a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from dpcohort._validate import choice
from dpcohort.accounting.contract import Contract
from dpcohort.clients import Budget, Population
from dpcohort.errors import InputError
from dpcohort.plan import selection_problem
from dpcohort.selection.problem import selected
from dpcohort.selection.rules import rule_from_settings
from dpcohort.training import Training

__all__ = ["Outcome", "Scenario", "Swept", "sweep"]

Swept = Literal["eta", "bias_cap", "rounds", "batch_size", "accountant", "epsilon"]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that fixes the probabilities: a plan without its draws."""

    population: Population
    training: Training
    rule: str = "privacy-aware"
    rule_settings: dict[str, Any]
    contract: Contract
    noise_model: str = "exact"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one value of the swept setting gives.

    Attributes:
        value: the value.
        noise_to_clip: expected norm of the noise on a round's mean gradient, in units of C.
        bias: ||p - p^u||_1, from 0 (by size) to 2.
        largest: the largest probability.
        smallest: the smallest probability.
        excluded: clients of probability 0.
        client_probability: probability of the client asked about, if one was.
    """

    value: float | str
    noise_to_clip: float
    bias: float
    largest: float
    smallest: float
    excluded: int
    client_probability: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, ready for JSON."""
        return asdict(self)


def sweep(
    scenario: Scenario,
    setting: str,
    values: Sequence[float | str],
    *,
    client: str | None = None,
) -> list[Outcome]:
    """Solve the selection once for each value of one setting.

    Args:
        scenario: the settings that stay.
        setting: ``eta``, ``bias_cap``, ``rounds``, ``batch_size``, ``accountant``, or ``epsilon``
            (of ``client``).
        values: what to try.
        client: whose probability to report, and whose epsilon to change.

    Example:
        >>> clients = Population.from_arrays(sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> scenario = Scenario(population=clients, training=Training(rounds=10, batch_size=50),
        ...                     rule_settings={}, contract=Contract.of("tight"))
        >>> [outcome.bias for outcome in sweep(scenario, "eta", [0.0])]
        [0.0]
    """
    choice("setting", setting, get_args(Swept))
    if setting == "epsilon" and client is None:
        raise InputError.because("sweeping epsilon needs a client: say whose with --client.")
    position = None if client is None else scenario.population.index_of(client)
    change = _CHANGES[setting]
    return [_outcome(change(scenario, value, client), value, position) for value in values]


def _outcome(scenario: Scenario, value: float | str, position: int | None) -> Outcome:
    problem, _ = selection_problem(
        scenario.population,
        scenario.training,
        contract=scenario.contract,
        noise_model=scenario.noise_model,
    )
    rule = rule_from_settings(scenario.rule, **scenario.rule_settings)
    p = selected(rule, problem).probabilities
    noise = float((problem.noise_costs * p**2 + problem.linear_costs * p).sum())
    return Outcome(
        value=value,
        noise_to_clip=float(np.sqrt(scenario.training.total_steps * noise)),
        bias=float(np.abs(p - problem.unbiased).sum()),
        largest=float(p.max()),
        smallest=float(p.min()),
        excluded=int((p == 0).sum()),
        client_probability=None if position is None else float(p[position]),
    )


def _with_rule_setting(name: str) -> Callable[[Scenario, Any, str | None], Scenario]:
    # eta and bias_cap exclude each other: setting one drops the other.
    other = {"eta": "bias_cap", "bias_cap": "eta"}[name]

    def change(scenario: Scenario, value: Any, client: str | None) -> Scenario:
        kept = {key: v for key, v in scenario.rule_settings.items() if key != other}
        return replace(scenario, rule_settings={**kept, name: value})

    return change


def _with_rounds(scenario: Scenario, value: Any, client: str | None) -> Scenario:
    return replace(scenario, training=replace(scenario.training, rounds=value))


def _with_batch_size(scenario: Scenario, value: Any, client: str | None) -> Scenario:
    if scenario.population.batch_sizes.any():
        raise InputError.because(
            "the clients name their own batch sizes, so one batch size for all changes nothing; "
            "remove the batch_size column to sweep it."
        )
    training = replace(scenario.training, batch_size=value, sampling_rate=None)
    return replace(scenario, training=training)


def _with_accountant(scenario: Scenario, value: Any, client: str | None) -> Scenario:
    return replace(scenario, contract=Contract.of(value))


def _with_epsilon(scenario: Scenario, value: Any, client: str | None) -> Scenario:
    population = scenario.population
    k = population.index_of(client or "")
    if population.public[k]:
        raise InputError.because(f"{client} is public: it has no epsilon to change.")
    budget = Budget(epsilon=value, delta=float(population.delta[k]))
    return replace(scenario, population=population.with_budget(population.ids[k], budget))


_CHANGES: dict[str, Callable[[Scenario, Any, str | None], Scenario]] = {
    "eta": _with_rule_setting("eta"),
    "bias_cap": _with_rule_setting("bias_cap"),
    "rounds": _with_rounds,
    "batch_size": _with_batch_size,
    "accountant": _with_accountant,
    "epsilon": _with_epsilon,
}
