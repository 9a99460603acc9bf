# SPDX-License-Identifier: Apache-2.0
"""Caps: how often a client may be drawn and asked, fixed before training and never exceeded.

Noise is calibrated to the caps. Within them the server may draw and ask in any order and stop
whenever it likes, and may decide so from earlier outputs: see docs/adaptive.md for the proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcohort._validate import IntArray, whole_number
from dpcohort.adaptive.rule import AdaptiveRule
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.plugins import naming_the_rule
from dpcohort.training import Training

__all__ = ["Caps", "make_caps"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Caps:
    """Per client, in the order of the population.

    Attributes:
        draws: draws over the whole training, at most.
        reports: reports over the whole training, at most.
    """

    draws: IntArray
    reports: IntArray

    def __post_init__(self) -> None:
        for column in (self.draws, self.reports):
            column.setflags(write=False)


def make_caps(
    population: Population,
    training: Training,
    rule: AdaptiveRule,
    *,
    participation_cap: int | str = "auto",
    report_cap: int | str = "auto",
) -> Caps:
    """The caps of every client.

    Args:
        population: the clients; public ones have no cap but the number of draws there are.
        training: rounds T and cohort size K.
        rule: says how many reports it expects.
        participation_cap: draws a client; ``auto`` is ⌈2 T K / N⌉, twice the mean, at most T.
        report_cap: reports a client; ``auto`` is what the rule expects.

    Raises:
        InputError: a cap below 1, or caps that all together cannot hold T K draws.

    Example:
        >>> from dpcohort.adaptive.rules.power_of_choice import PowerOfChoice
        >>> people = Population.from_arrays(sizes=[90] * 20, epsilon=1.0, delta=1e-5)
        >>> caps = make_caps(people, Training(rounds=50, cohort_size=2), PowerOfChoice(d=4))
        >>> int(caps.draws[0]), int(caps.reports[0])
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
    return Caps(draws=draws, reports=reports)


def _given(field: str, value: int | str) -> int:
    if isinstance(value, str):
        raise InputError(field, given=value, allowed="'auto' or a whole number of at least 1")
    return whole_number(field, value, at_least=1)
