# SPDX-License-Identifier: Apache-2.0
"""The paper's biased baseline: in every round the clients with the largest local loss.

In two forms. ``biased-raw`` is as the paper ran it: the server sees every client's exact loss, so
nothing of it is private, and its cells say so. ``biased-private`` is the honest one: losses are
clipped, noised and charged to the same budgets as the training steps.

A client may be drawn at most twice as often as on average, and its noise is calibrated to that cap:
who will be drawn is not known beforehand, so the paper's own T_k cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpcohort.errors import InputError
from dpcohort.recipes.outcome import Outcome

if TYPE_CHECKING:
    from dpcohort.adaptive import AdaptivePlan, AdaptiveSession
    from dpcohort.engine import ClientRecords, Evaluation, RoundRecord
    from dpcohort.recipes.execution import Work
    from dpcohort.runs.job import Job

__all__ = ["biased_plan", "train_biased"]

#: Share of each budget that private reports may take.
_REPORT_SHARE = 0.1


def biased_plan(job: Job, form: str) -> AdaptivePlan:
    """The adaptive plan for the clients, training and contract of a job.

    Args:
        job: a training with planned cohorts; only its cohorts are not used.
        form: ``biased-raw`` or ``biased-private``.
    """
    from dpcohort.adaptive import make_adaptive_plan

    return make_adaptive_plan(
        job.plan.population,
        job.plan.training,
        rule="power-of-choice",
        reports="raw" if form == "biased-raw" else "private",
        report_share=_REPORT_SHARE,
        accountant=job.plan.contract,
        guard="lift",
        seed=job.seed,
    )


def train_biased(works: Sequence[Work], told: Callable[[int], None]) -> list[Outcome]:
    """Train side by side; each round, every client's loss is looked at first.

    Args:
        works: trainings that share data, model, rounds and evaluation.
        told: the number of rounds done.
    """
    from dpcohort.adaptive import AdaptiveSession, adaptive_rounds
    from dpcohort.engine import StackedEngine

    jobs = [work.job for work in works]
    first = jobs[0].records()
    model = jobs[0].trained
    sessions: list[AdaptiveSession] = []
    experiments = []
    plans: dict[tuple[str, str], AdaptivePlan] = {}  # partitions of the same clients share one
    for work in works:
        job = work.job
        records: ClientRecords = first if job is jobs[0] else first.repartitioned(job.partition)
        key = (job.plan.sha256, str(work.cell.adaptive))
        if key not in plans:
            plans[key] = biased_plan(job, key[1])
        session = AdaptiveSession(plans[key], model, records, streams=job.streams)
        sessions.append(session)
        experiments.append(session.experiment(optimiser=job.optimiser, initial=job.initial()))
    engine = StackedEngine(
        model, experiments, evaluator=jobs[0].evaluator(), evaluate_every=jobs[0].evaluate_every
    )
    states = engine.initial_states()
    histories: list[list[RoundRecord]] = [[] for _ in works]
    for done, records_of in enumerate(adaptive_rounds(engine, states, sessions), start=1):
        for history, record in zip(histories, records_of, strict=True):
            history.append(record)
        told(done)
    return [
        _outcome(session, history) for session, history in zip(sessions, histories, strict=True)
    ]


def _outcome(session: AdaptiveSession, history: Sequence[RoundRecord]) -> Outcome:
    plan, book = session.adaptive_plan, session.book
    held = ~plan.population.public & (np.asarray(book.draws) > 0)
    spent = session.spent_epsilon()
    points = [(r.round + 1, r.test, r.test_average or r.test) for r in history if r.test]
    if not points:
        raise InputError.because("the biased baseline was never evaluated; see evaluate_every.")
    last: Evaluation = points[-1][1]
    return Outcome(
        accuracy=points[-1][2].accuracy,
        last=last.accuracy,
        curve=tuple((rounds, shown.accuracy) for rounds, _, shown in points),
        clients_drawn=int(held.sum()),
        clients_lifted=int(plan.noise.lifted.sum()),
        promises_hold=bool((spent[held] <= plan.population.epsilon[held]).all()),
        plan=plan.sha256,
    )
