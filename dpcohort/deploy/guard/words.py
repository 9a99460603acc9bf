# SPDX-License-Identifier: Apache-2.0
"""The terms as a person reads them when a guard starts: who, what, how much."""

from __future__ import annotations

from dpcohort.deploy.guard.start import CheckedTerms
from dpcohort.deploy.guard.terms import AcceptedRun
from dpcohort.deploy.ledger import RunTerms
from dpcohort.deploy.ledger.spending import Spending

__all__ = ["terms_in_words"]


def terms_in_words(checked: CheckedTerms) -> list[str]:
    """One line for each thing the owner has said.

    Example:
        >>> from dpcohort.deploy.guard.start import check_terms
        >>> from dpcohort.deploy.guard.terms import GuardTerms, ModelTerms
        >>> model = ModelTerms(name="logistic", input_shape=(64,), classes=10)
        >>> terms = GuardTerms(dataset="ward-7", lifetime_epsilon=4.0, lifetime_delta=1e-5,
        ...                    model=model, allowed_users=(65534,))
        >>> print(terms_in_words(check_terms(terms, 600))[0])
        ward-7: 600 records may spend epsilon 4 at delta 1e-05 over all runs (summed, zero-out).
    """
    terms = checked.terms
    lines = [
        f"{terms.dataset}: {checked.records} records may spend epsilon {terms.lifetime_epsilon:g} "
        f"at delta {terms.lifetime_delta:g} over all runs ({terms.across_runs}, "
        f"{terms.neighbours}).",
        f"Model: {terms.model.name} on {'x'.join(map(str, terms.model.input_shape))} with "
        f"{terms.model.classes} classes, and no other.",
        f"May ask: users {', '.join(map(str, terms.allowed_users)) or 'none'}.",
    ]
    if terms.across_runs == "composed":
        lines.append(
            "WARNING: across_runs is composed. The lifetime cap then holds only if no server "
            "chooses what to ask from what it was answered in another run; summed needs no such "
            "trust."
        )
    if terms.same_user:
        lines.append(
            "WARNING: same_user is set. Code of the guard's own user can open the data without "
            "asking; this is for trials, not for protection."
        )
    if terms.ledger_id is None:
        lines.append(
            "WARNING: no ledger_id is pinned. Whatever ledger is given counts, also another or an "
            "older one. Pin yours with: dpcohort guard pin --terms FILE --ledger FILE"
        )
    if terms.answer_seconds == 0:
        lines.append("WARNING: answer_seconds is 0. The time of an answer tells the batch's size.")
    for run in terms.runs:
        if run.run not in terms.closed_runs:
            lines.append(_run_in_words(run, checked.runs[run.run]))
            lines += _too_large(run.run, Spending(terms.cap(), [(checked.runs[run.run], 1)]))
    if terms.closed_runs:
        lines.append(f"Closed, not answered: {', '.join(terms.closed_runs)}.")
    if not terms.runs:
        lines.append("No run is accepted here; accept one with: dpcohort ledger accept")
    return lines


def _too_large(run: str, alone: Spending) -> list[str]:
    """A run whose first draw would be refused, the data being untouched."""
    if alone.fits():
        return []
    return [
        f"WARNING: no draw of {run} fits the lifetime cap: alone it counts as epsilon "
        f"{alone.epsilon():.5g} under {alone.relation}, or its delta is larger than the cap's."
    ]


def _run_in_words(run: AcceptedRun, terms: RunTerms) -> str:
    plan = f"plan {run.plan[:12]}" if run.plan else "any plan"
    return (
        f"Run {run.run} ({plan}): at most {terms.draws} draws of {terms.local_steps} local steps "
        f"in {terms.rounds} rounds, batches of {run.batch_size} ({terms.sampler}), clip at most "
        f"{terms.clip:g}, noise multiplier at least {terms.least_noise_multiplier:.5g}: epsilon "
        f"{terms.certified_epsilon():.5g} of {terms.epsilon:g} at delta {terms.delta:g} "
        f"({terms.neighbours})."
    )
