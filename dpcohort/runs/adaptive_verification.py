# SPDX-License-Identifier: Apache-2.0
"""The ledger of an adaptive run checked again: caps, order, and every choice made once more.

Draws and reports are counted from the ledger whatever it says. Then each round is decided again:
the rule sees what it saw, gets the answers that are written down, and must come to the cohort that
is written down. A rule that looks at updates, or one of somebody else, cannot be asked again; its
cohorts are held against the caps alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.adaptive.rule import rule_cohort
from dpcohort.errors import DpcohortError, VerificationError
from dpcohort.plan import Plan
from dpcohort.plan_file import RecordedRule
from dpcohort.runs.journal import Journal

__all__ = ["AdaptiveCount", "check_adaptive_entries"]


@dataclass(kw_only=True)
class AdaptiveCount:
    """What an adaptive ledger says.

    Attributes:
        draws: of each client.
        reports: of each client.
        cohorts: by round.
        problems: what is wrong, each with the file or client it is about.
        notes: what could not be checked.
    """

    draws: IntArray
    reports: IntArray
    cohorts: dict[int, list[int]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_adaptive_entries(
    plan: Plan, entries: list[dict[str, Any]], *, name: str, seeded: bool
) -> AdaptiveCount:
    """Count what the lines after the header say, and make every choice again.

    Args:
        plan: of the run.
        entries: the lines after the header.
        name: of the file.
        seeded: a lost report of a seeded run is made again as the very same one.
    """
    count = AdaptiveCount(
        draws=np.zeros(len(plan.population), dtype=np.int64),
        reports=np.zeros(len(plan.population), dtype=np.int64),
    )
    whole = _counted(plan, entries, count, name)
    _check_rounds(plan, count, name)
    if whole and not count.problems:
        _check_choices(plan, entries, count, name, seeded=seeded)
    return count


def _counted(plan: Plan, entries: list[dict[str, Any]], count: AdaptiveCount, name: str) -> bool:
    """Add up draws and reports; whether every line is one."""
    whole = True
    for line, entry in enumerate(entries, start=2):
        kind = next((key for key in ("reports", "answers", "cohort") if key in entry), None)
        names = entry.get(kind) if kind is not None else None
        positions = _positions(plan, names)
        expected = {"round", kind}
        round = entry.get("round")
        if positions is None or set(entry) != expected or not isinstance(round, int):
            count.problems.append((name, f"line {line} is no entry of this plan."))
            whole = False
            continue
        if not 0 <= round < plan.training.rounds:
            count.problems.append((name, f"round {round} is not in the plan (line {line})."))
            whole = False
        if kind == "reports":
            np.add.at(count.reports, positions, 1)
        elif kind == "cohort":
            np.add.at(count.draws, positions, 1)
            if round in count.cohorts:
                count.problems.append((name, f"round {round} is counted twice (line {line})."))
            if len(positions) != plan.training.cohort_size:
                count.problems.append((name, f"round {round} has {len(positions)} draws."))
            count.cohorts[round] = positions
    return whole


def _positions(plan: Plan, names: object) -> list[int] | None:
    if not isinstance(names, list | dict):
        return None
    try:
        return [plan.population.index_of(name) for name in names]
    except (DpcohortError, TypeError):
        return None


def _check_rounds(plan: Plan, count: AdaptiveCount, name: str) -> None:
    missing = sorted(set(range(max(count.cohorts, default=-1) + 1)) - set(count.cohorts))
    if missing:
        words = f"round {missing[0]} is missing though later rounds are counted."
        count.problems.append((name, words))
    for what, made, cap in (
        ("draws", count.draws, plan.schedule.counts),
        ("reports", count.reports, plan.report_caps),
    ):
        for k in np.flatnonzero(made > cap).tolist():
            words = f"{name} counts {int(made[k])} {what}, the cap is {int(cap[k])}."
            count.problems.append((plan.population.ids[k], words))


def _check_choices(
    plan: Plan,
    entries: list[dict[str, Any]],
    count: AdaptiveCount,
    name: str,
    *,
    seeded: bool,
) -> None:
    """Decide every round again from what is written down."""
    assert plan.adaptive is not None
    why, rule = _cannot_be_asked(plan), plan.adaptive.rule
    if why:
        count.notes.append(why)
        return
    journal = Journal(plan)
    try:
        for entry in entries:
            journal.replay(entry)
    except VerificationError as error:
        count.problems.append((name, str(error)))
        return
    for round, cohort in sorted(count.cohorts.items()):
        answers = journal.answers(round)

        def written(asked: IntArray, known: Mapping[int, float] = answers) -> dict[int, float]:
            if set(known) != {int(k) for k in asked}:
                raise VerificationError("the clients that reported are not those the rule asks.")
            return dict(known)

        try:
            view = journal.view(round, repeats=seeded)
            again = rule_cohort(rule, view, written).tolist()
        except DpcohortError as error:
            count.problems.append((name, f"round {round}: {error}"))
            continue
        if again != cohort:
            words = f"round {round} has another cohort than the rule comes to from the reports."
            count.problems.append((name, words))


def _cannot_be_asked(plan: Plan) -> str:
    if plan.has_raw_reports:
        return "raw reports are not written down, so the choices could not be made again."
    assert plan.adaptive is not None
    if plan.adaptive.rule.watches_updates:
        return (
            f"the rule {plan.selection.rule} looks at updates, so its choices were not made again."
        )
    if isinstance(plan.adaptive.rule, RecordedRule):
        return (
            f"the rule {plan.selection.rule} is not of this package; its choices were not repeated."
        )
    return ""
