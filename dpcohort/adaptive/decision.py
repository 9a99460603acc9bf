# SPDX-License-Identifier: Apache-2.0
"""One decision: the rule sees a view, says whom to ask, gets answers, and gives a cohort."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive.book import Book
from dpcohort.adaptive.choosing import filled_cohort
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.view import RoundView
from dpcohort.errors import InputError
from dpcohort.plugins import naming_the_rule

__all__ = ["decide", "round_view"]

Ask = Callable[[IntArray], Mapping[int, float]]


def round_view(
    plan: AdaptivePlan,
    book: Book,
    round: int,
    updates: Mapping[int, FloatArray] | None = None,
    *,
    repeats: bool = True,
) -> RoundView:
    """What the rule may know before a round: public facts, and what is in the book.

    It does not depend on how much of the round, or of later ones, is in the book already.

    Args:
        plan: the public facts.
        book: reports and cohorts.
        round: the round to come.
        updates: sketches of noised updates.
        repeats: whether a lost report is made again as the very same one.
    """
    draws_left, reports_left = book.left_before(round, repeats=repeats)
    return RoundView(
        round=round,
        cohort_size=plan.training.cohort_size,
        ids=plan.population.ids,
        sizes=plan.population.sizes,
        epsilon=plan.population.epsilon,
        public=plan.population.public,
        draws_left=_closed(draws_left),
        reports_left=_closed(reports_left),
        seed=plan.seed,
        cohorts=book.cohorts_before(round),
        reports=book.reports_before(round),
        report_stds=_closed(plan.report_stds),
        updates=dict(updates or {}),
    )


def decide(plan: AdaptivePlan, view: RoundView, ask: Ask) -> IntArray:
    """The cohort of a round.

    Args:
        plan: its rule decides.
        view: what the rule sees.
        ask: gets the reports of the given clients; the rule itself never holds it.

    Raises:
        InputError: the rule names somebody who may not be asked or drawn, or fails.
    """
    with naming_the_rule(plan.rule, "ask"):
        wanted = plan.rule.ask(view)
    asked = _positions(plan, "ask", wanted, view.can_report)
    if asked.size and plan.terms is None:
        raise InputError.because(
            f"the rule {plan.rule_name} asks for reports but its class names no statistic."
        )
    answers = ask(asked) if asked.size else {}
    with naming_the_rule(plan.rule, "choose"):
        taken = plan.rule.choose(view, answers)
    chosen = _positions(plan, "choose", taken, view.candidates)
    return filled_cohort(view, chosen[: view.cohort_size])


def _closed(column: NDArray[Any]) -> NDArray[Any]:
    column.setflags(write=False)
    return column


def _positions(plan: AdaptivePlan, what: str, given: object, allowed: IntArray) -> IntArray:
    clients = np.asarray(given)
    if clients.size == 0:
        return np.array([], dtype=np.int64)
    if clients.ndim != 1 or clients.dtype.kind not in "iu":
        raise InputError(
            f"{plan.rule_name}.{what}", given=given, allowed="a list of client positions"
        )
    outside = np.setdiff1d(clients, allowed)
    if outside.size or np.unique(clients).size != clients.size:
        raise InputError(
            f"{plan.rule_name}.{what}",
            given=clients.tolist(),
            allowed="distinct clients, each below its cap",
        )
    return clients.astype(np.int64)
