# SPDX-License-Identifier: Apache-2.0
"""Spending of a run that another one continues, counted from its ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpcohort.accounting import Charge, Segment
from dpcohort.clients import Population
from dpcohort.errors import VerificationError
from dpcohort.limits import LARGEST_LOG, read_bounded
from dpcohort.plan import Plan
from dpcohort.runs._folder import LEDGER, SETTINGS, read_json
from dpcohort.runs._journal import Journal
from dpcohort.runs._provenance import source_of
from dpcohort.runs._receipts import Receipt, make_receipts


def broken_leavers(
    old: Plan, folder: Path, stay: Population, paid: Sequence[Charge], method: str = "pld"
) -> list[Receipt]:
    """Receipts of clients that leave a run having spent more than they promised.

    Args:
        old: the plan of the run.
        folder: where its ledger is.
        stay: who goes on.
        paid: all that was paid beside rounds, until today.
        method: of ``certify_epsilon``.
    """
    left = set(old.population.ids) - set(stay.ids)
    gone = np.array([k for k, name in enumerate(old.population.ids) if name in left], dtype=int)
    journal = Journal.read(old, folder / LEDGER)
    made = make_receipts(
        old,
        journal.draws,
        clients=gone,
        reports=journal.reports,
        method=method,
        later=[charge for charge in paid if charge not in old.past.paid.charges],
    )
    return [receipt for receipt in made if not receipt.holds]


def segment_of(folder: Path, plan: Plan) -> Segment:
    """What was spent in one run, as far as its ledger counts.

    Raises:
        VerificationError: its ledger is not that of its plan.
    """
    content, journal = whole_lines(folder / LEDGER), Journal.read(plan, folder / LEDGER)
    everybody = np.arange(len(plan.population))
    draws, reports = plan.participation.charged(journal.draws, journal.reports, everybody)
    took_part = np.flatnonzero((draws > 0) | (reports > 0)).tolist()
    ids, public = plan.population.ids, plan.population.public
    events = {
        k: plan.events(k, draws=int(draws[k]), reports=int(reports[k]))
        for k in took_part
        if not public[k]
    }
    settings = read_json(folder / SETTINGS)
    return Segment(
        plan=plan.sha256,
        ledger=hashlib.sha256(content).hexdigest(),
        rounds=len(journal.rounds),
        source=source_of(settings),
        spent={
            ids[k]: replace(h, events=tuple(e for e in h.events if e.steps))
            for k, h in events.items()
        },
        without_noise=tuple(ids[k] for k in took_part if public[k]),
        honest=plan.noise.honest,
        unit=plan.contract.unit.name,
    )


def whole_lines(path: Path) -> bytes:
    """A ledger without a line that a crash cut short."""
    try:
        content = read_bounded(path, LARGEST_LOG)
    except OSError as error:
        raise VerificationError(f"{path} cannot be read: {error.strerror or error}.") from None
    return content[: content.rfind(b"\n") + 1]
