# SPDX-License-Identifier: Apache-2.0
"""Statement for a client: its receipt as one HTML file, for an ethics board or a DPO.

It says in plain words what was promised, what that means for a person, what was done, what is not
protected and how to check it, with the numbers behind it. It is written from the receipt and the
accounted steps alone: nothing in it comes from a record.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpcohort._version import __version__
from dpcohort.accounting import (
    AttackRisk,
    History,
    charged_risk,
    of_two_clients,
    promised_risk,
)
from dpcohort.accounting._risk import USUAL_FALSE_ALARMS
from dpcohort.atomic_file import write_text
from dpcohort.errors import InputError
from dpcohort.report._sections import fill_template
from dpcohort.report._statement import Statement, at_most, statement
from dpcohort.report.html._page import page_asset
from dpcohort.runs import ClientReceipt, Receipt, Run, Verification

_SEVERAL = 5  # records of one person that the letter speaks of
_CURVE = 81
_SIDE = 100.0

_NEIGHBOURS = {
    "zero-out": "taken out: everything contributed by that is left away",
    "replace-one": "exchanged for anything else whatever",
}
#: Of each unit: what may be used or not, what is supposed, what an attacker asks.
_WORDS = {
    "record": ("record was", "one record is", "was this person's record"),
    "person": ("records were", "all records of one person are", "were this person's records"),
    "client": ("records were", "all records of the client are", "were this person's records"),
}


class Beside(NamedTuple):
    """Another client of a run, and what both promised together about a person who is with both.

    Attributes:
        client: the other one.
        epsilon: of both promises.
        delta: of both.
        certified_epsilon: of what was done, composed, at that delta; None where it does not
            compose.
    """

    client: str
    epsilon: float
    delta: float
    certified_epsilon: float | None = None


def another_client(run: Run, k: int) -> Beside | None:
    """The client that promised most beside this one, and what both promised of one person.

    Args:
        run: where both took part.
        k: position of this one.
    """
    plan, people = run.plan, run.plan.population
    others = [j for j in np.flatnonzero((run.ledger.draws > 0) & ~people.public) if j != k]
    if not others or people.public[k]:
        return None
    promises = [plan.past.paid.whole(people, j) for j in range(len(people))]
    other = max((int(j) for j in others), key=lambda j: promises[j][0])
    shared = plan.noise.only_sums
    epsilon, delta = of_two_clients(promises[k], promises[other], shared_noise=shared)
    done = [
        plan.charged_history(j, draws=int(run.ledger.draws[j]), reports=int(run.reports[j]))
        for j in (k, other)
    ]
    certified = None
    is_charged = plan.past.paid.charges or run.later_charges()
    if not shared and not is_charged and None not in done:
        certified = History(tuple(e for each in done if each for e in each.events)).epsilon(delta)
    return Beside(people.ids[other], epsilon, delta, certified)


def write_letter(
    path: str | Path,
    receipt: ClientReceipt,
    *,
    risk: AttackRisk | None,
    alone: AttackRisk | None = None,
    history: History | None = None,
    commands: Sequence[Sequence[str]] = (),
    answers: Statement | None = None,
    beside: Beside | None = None,
    verification: Verification | None = None,
    draft: bool = False,
) -> None:
    """Write the statement for the client of a receipt, whole or not at all.

    Args:
        path: where the page goes.
        receipt: of a run, or of a client's own ledger.
        risk: what no attack on the training can exceed; None where nothing bounds it, or nothing
            needs to. What was charged before the training is added here.
        alone: the same if all others collude, where noise is distributed.
        history: the accounted steps, to compute all of it again.
        commands: what to type to check it.
        answers: to the questions of NIST SP 800-226; by default those of the receipt alone.
        beside: another client with which a person may be, where a person is the unit.
        verification: of the run's folder; None for the receipt of a ledger.
        draft: every page says that it is one, as it does of what is not private.

    Raises:
        InputError: it cannot be written there, or jinja2 is missing.

    Example:
        >>> import tempfile
        >>> receipt = Receipt(client="ward", neighbours="zero-out", promised_epsilon=1.0,
        ...                   delta=1e-5, certified_epsilon=0.9)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_letter(Path(folder) / "letter.html", receipt,
        ...                  risk=promised_risk(epsilon=0.9, delta=1e-5))
        ...     "ward" in (Path(folder) / "letter.html").read_text()
        True
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError.because(
            f"{target} cannot be written: there is no folder {target.parent}. Make it first."
        )
    if target.is_dir():
        raise InputError.because(f"{target} is a folder. Name a file: {target}/letter.html")
    training, receipt = receipt, receipt.in_all()
    for (_, epsilon, delta), own in zip(training.paid, training.paid_alone, strict=True):
        risk = None if risk is None else charged_risk(risk, epsilon=epsilon, delta=delta)
        alone = None if alone is None else charged_risk(alone, epsilon=own, delta=delta)
    records, suppose, question = _WORDS[receipt.protects.name]
    page = fill_template(
        page_asset("letter.html.j2"),
        unit=receipt.protects,
        records=records,
        suppose=suppose,
        question=question,
        beside=beside,
        plainly=_plainly,
        at_most=at_most,
        receipt=receipt,
        training=training,
        charged=training.paid,
        risk=risk,
        history=history,
        honest=receipt.honest,
        rates=_rates(receipt, risk, alone),
        curve=None if risk is None else _curve(risk),
        several=_SEVERAL,
        factor=_factor(receipt.promised_epsilon),
        one_in=_one_in(receipt.delta),
        up=_rounded_up,
        delta=_plainly(receipt.delta),
        relation=_NEIGHBOURS.get(receipt.neighbours, receipt.neighbours),
        not_private=receipt.unprotected,
        watermark=" · ".join(
            words for words in ("DRAFT" * draft, receipt.unprotected.upper()) if words
        ),
        weights=training.start,
        all_runs=not isinstance(receipt, Receipt),
        commands=[shlex.join(command) for command in commands],
        answers=(answers or statement(training)).sections,
        doubts=_doubts(verification),
        whose_word={} if verification is None else verification.whose_word,
        kind="" if verification is None else verification.kind,
        rows=[*training.rows(), *_sealed_rows(verification)],
        steps=[] if history is None else [event.to_dict() for event in history.events],
        style=page_asset("style.css") + page_asset("letter.css"),
        version=__version__,
        written=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    write_text(target, str(page).lstrip())


def _doubts(verification: Verification | None) -> list[str]:
    """What does not fit together in the run's folder; broken promises are told as such."""
    findings = () if verification is None else verification.findings
    return [f"{one.subject}: {one.message}" for one in findings if one.kind == "mismatch"]


def _sealed_rows(verification: Verification | None) -> list[tuple[str, Any]]:
    """By what the run can be known again."""
    if verification is None:
        return []
    seal = verification.seal or "none: the run is not finished"
    signed = verification.signed_by or "nobody"
    return [("seal of all files (SHA-256)", seal), ("signed by the key", signed)]


def _rates(
    receipt: ClientReceipt, risk: AttackRisk | None, alone: AttackRisk | None
) -> list[dict[str, float]]:
    """Rows of the letter's table: what an attack with so many false alarms finds at most.

    ``false_alarms`` is the share named wrongly of those whose record was not used, ``hits`` the
    largest share found of those whose one record was, ``several`` the same for a person with
    several records, ``alone`` the same as ``hits`` if all others collude, where that is known, and
    ``promise`` what the promise alone would allow.
    """
    if risk is None or receipt.promised_epsilon is None or receipt.delta is None:
        return []
    promise = promised_risk(epsilon=receipt.promised_epsilon, delta=receipt.delta)
    return [
        {
            "false_alarms": alpha,
            "hits": risk.hits(alpha),
            "several": risk.hits(alpha, records=_SEVERAL),
            **({} if alone is None else {"alone": alone.hits(alpha)}),
            "promise": promise.hits(alpha),
        }
        for alpha in USUAL_FALSE_ALARMS
    ]


def _curve(risk: AttackRisk) -> str:
    """The curve of hits over false alarms as points of a drawing of 100 by 100."""
    alphas = [(i / (_CURVE - 1)) ** 2 for i in range(_CURVE)]
    return " ".join(f"{_SIDE * a:.2f},{_SIDE * (1 - risk.hits(a)):.2f}" for a in alphas)


def _factor(epsilon: float | None) -> str:
    """e^ε in words."""
    if epsilon is None:
        return ""
    factor = math.exp(min(epsilon, 700.0))
    return f"{factor:.3g}" if factor < 1000 else f"{factor:.1e}"


def _one_in(delta: float | None) -> str:
    """A small probability as one in so many."""
    return "" if not delta else f"1 in {round(1 / delta):,}"


def _rounded_up(value: float, digits: int) -> str:
    """A bound with so many decimals, never below what it bounds."""
    if not math.isfinite(value):
        return "unbounded"
    scale = 10**digits
    return f"{math.ceil(value * scale * (1 - 1e-12)) / scale:.{digits}f}"


def _plainly(delta: float | None) -> str:
    """A small number without an exponent, as far as that can be read."""
    if delta is None or delta < 1e-9:
        return f"{delta}"
    return f"{delta:.12f}".rstrip("0")
