# SPDX-License-Identifier: Apache-2.0
"""What a plan would become if one setting were different, without drawing a schedule."""

from __future__ import annotations

from collections.abc import Sequence
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

__all__ = ["Scenario", "Swept", "SweptValue", "sweep"]

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
class SweptValue:
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
    scenario: Scenario, setting: str, values: Sequence[float | str], *, client: str | None = None
) -> list[SweptValue]:
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
    tried = [_changed(scenario, setting, value, client) for value in values]
    return [_tried(one, value, position) for one, value in zip(tried, values, strict=True)]


def _tried(scenario: Scenario, value: float | str, position: int | None) -> SweptValue:
    problem, _ = selection_problem(
        scenario.population,
        scenario.training,
        contract=scenario.contract,
        noise_model=scenario.noise_model,
    )
    rule = rule_from_settings(scenario.rule, **scenario.rule_settings)
    p = selected(rule, problem).probabilities
    noise = float((problem.noise_costs * p**2 + problem.linear_costs * p).sum())
    return SweptValue(
        value=value,
        noise_to_clip=float(np.sqrt(scenario.training.total_steps * noise)),
        bias=float(np.abs(p - problem.unbiased).sum()),
        largest=float(p.max()),
        smallest=float(p.min()),
        excluded=int((p == 0).sum()),
        client_probability=None if position is None else float(p[position]),
    )


def _changed(scenario: Scenario, setting: str, value: Any, client: str | None) -> Scenario:
    """The scenario with one setting changed."""
    people, training = scenario.population, scenario.training
    if setting in ("eta", "bias_cap"):  # they exclude each other: setting one drops the other
        kept = {k: v for k, v in scenario.rule_settings.items() if k not in ("eta", "bias_cap")}
        return replace(scenario, rule_settings={**kept, setting: value})
    if setting == "rounds":
        return replace(scenario, training=replace(training, rounds=value))
    if setting == "batch_size":
        if people.batch_sizes.any():
            raise InputError.because(
                "the clients name their own batch sizes, so one batch size for all changes "
                "nothing; remove the batch_size column to sweep it."
            )
        changed = replace(training, batch_size=value, sampling_rate=None)
        return replace(scenario, training=changed)
    if setting == "accountant":
        return replace(scenario, contract=Contract.of(value))
    k = people.index_of(client or "")
    if people.public[k]:
        raise InputError.because(f"{client} is public: it has no epsilon to change.")
    budget = Budget(epsilon=value, delta=float(people.delta[k]))
    return replace(scenario, population=people.with_budget(people.ids[k], budget))
