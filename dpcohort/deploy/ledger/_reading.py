# SPDX-License-Identifier: Apache-2.0
"""A ledger for its readers: what it adds up to, a receipt, all that does not hold, a copy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpcohort.accounting import AttackRisk, attack_risk, promised_risk
from dpcohort.accounting._unit import unit_of
from dpcohort.deploy.ledger import _clock
from dpcohort.deploy.ledger._counter import check_counter, counter_path, read_counter
from dpcohort.deploy.ledger._receipt import LifetimeReceipt
from dpcohort.deploy.ledger._spending import (
    composed,
    counted_relation,
    fits_cap,
    spent_epsilon,
    summed,
)
from dpcohort.deploy.ledger._state import Account, LedgerState
from dpcohort.deploy.ledger._store import LedgerStore, canonical_json
from dpcohort.errors import InputError, VerificationError


def lifetime_receipt(state: LedgerState, dataset: str) -> LifetimeReceipt:
    """The receipt of one data set.

    Args:
        state: what the ledger's rows add up to, from ``read_state``.
        dataset: which data set.

    Raises:
        InputError: it is not registered.

    Example:
        >>> import tempfile
        >>> from dpcohort.deploy.ledger import ClientLedger, LifetimeCap
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ClientLedger.create(Path(folder) / "ward.ledger") as ledger:
        ...         ledger.register("ward-7", LifetimeCap(epsilon=2.0, delta=1e-5))
        ...     receipt = lifetime_receipt(read_state(Path(folder) / "ward.ledger"), "ward-7")
        >>> receipt.certified_epsilon, receipt.holds
        (0.0, True)
    """
    cap = state.cap(dataset)
    draws = state.counted(dataset).values()
    windows = [window.values() for window in state.windows(dataset)]
    clock = state.clock.after(_clock.machine_clock())
    counts_now = state.counted_within(dataset, cap.per, clock.age).values()
    entries, head = state.head
    return LifetimeReceipt(
        client=dataset,
        unit=unit_of(cap.unit).of("this data set"),
        neighbours=counted_relation(cap, draws),
        across_runs=cap.across_runs,
        per=str(cap.per),
        promised_epsilon=cap.epsilon,
        delta=cap.delta,
        certified_epsilon=max((spent_epsilon(cap, window) for window in windows), default=0.0),
        ever_epsilon=spent_epsilon(cap, draws),
        counting_epsilon=spent_epsilon(cap, counts_now),
        fewer_after=state.fewer_after(dataset, clock),
        within_cap=all(fits_cap(cap, window) for window in windows),
        runs=tuple(run_spending(*one) for one in state.accounts[dataset].items()),
        ledger=state.ledger,
        entries=entries,
        head=head,
    )


def lifetime_risk(state: LedgerState, dataset: str) -> AttackRisk:
    """What no attack on a record of the data set can exceed, whatever all runs gave out.

    From the composition of all counted draws; where runs are summed, from the sum of their (ε, δ).

    Args:
        state: what the ledger's rows add up to, from ``read_state``.
        dataset: which data set.

    Raises:
        InputError: it is not registered.

    Example:
        >>> import tempfile
        >>> from dpcohort.deploy.ledger import ClientLedger, LifetimeCap
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ClientLedger.create(Path(folder) / "ward.ledger") as ledger:
        ...         ledger.register("ward-7", LifetimeCap(epsilon=2.0, delta=1e-5))
        ...     lifetime_risk(read_state(Path(folder) / "ward.ledger"), "ward-7").hits(0.05)
        0.05
    """
    cap = state.cap(dataset)
    draws = state.counted(dataset).values()
    if cap.across_runs == "composed":
        return attack_risk(composed(cap, draws), delta=cap.delta)
    epsilon, delta = summed(cap, draws)
    return promised_risk(epsilon=epsilon, delta=delta)


def run_spending(run: str, account: Account) -> dict[str, Any]:
    """What one run has spent of a data set.

    Both epsilons speak of the relation of the accepted terms. ``certified_epsilon`` is that of the
    counted draws and reports alone, at the run's δ, if their number was not chosen from what they
    gave out; ``promised_epsilon`` holds whatever a server did. ``unreleased_draws`` are lost, or
    being computed; all draws that were reserved count. Of ``reports`` is told where the terms allow
    any. Where noise is distributed, ``alone_epsilon`` holds also if all others collude with the
    server.
    """
    terms, counted, asked = account.terms, len(account.draws), len(account.reports)
    released = sum(output is not None for output in account.draws.values())
    return {
        "run": run,
        "promised_epsilon": terms.epsilon,
        "delta": terms.delta,
        "accepted_draws": terms.draws,
        "counted_draws": counted,
        "released_draws": released,
        "unreleased_draws": counted - released,
        "steps": counted * terms.local_steps,
        "noise_multiplier": terms.least_noise_multiplier,
        "sampling_rate": terms.sampling_rate,
        "neighbours": str(terms.neighbours),
        **({"until": str(terms.until)} if terms.is_timed else {}),
        "certified_epsilon": terms.certified_epsilon(counted, asked) if counted or asked else 0.0,
        **terms.reporting.spending(terms, account.reports),
        **terms.trust.spending(terms, counted, len(account.unmasked)),
    }


def read_state(path: str | Path, *, counter: str | Path | None = None) -> LedgerState:
    """What a ledger's rows add up to, for looking at it.

    Args:
        path: the ledger.
        counter: its counter, if not beside it.

    Raises:
        InputError: there is no ledger, or it cannot be opened.
        VerificationError: it is damaged, was edited, or is older than its counter.

    Example:
        >>> import tempfile
        >>> from dpcohort.deploy.ledger import ClientLedger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ClientLedger.create(Path(folder) / "ward.ledger").close()
        ...     read_state(Path(folder) / "ward.ledger").head[0]
        1
    """
    with closing(LedgerStore(Path(path), writable=False)) as store:
        # First, so that a draw counted meanwhile is never taken for a roll-back.
        count = read_counter(counter_path(path, counter))
        state = LedgerState()
        for entry in store.entries():
            state.replay(entry)
    check_counter(Path(path), count, ledger=state.ledger, hashes=state.hashes)
    return state


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a check of a ledger found.

    Attributes:
        entries: rows that hold.
        head: hash of the last of them.
        findings: what does not hold, none if all is well: ``what`` it is about (``file``,
            ``chain``, ``counter``, ``cap``, ``output`` or ``head``), and the ``detail`` in words.
    """

    entries: int
    head: str
    findings: tuple[dict[str, str], ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "findings": list(self.findings), "holds": self.holds}


def verify_ledger(
    path: str | Path, *, counter: str | Path | None = None, known_head: str | None = None
) -> Verification:
    """Recompute the chain, every rule, the counter, the stored outputs and the caps.

    Args:
        path: the ledger.
        counter: its counter, if not beside it.
        known_head: a head hash kept elsewhere (on a receipt); it must still be in the chain.

    Raises:
        InputError: there is no ledger there, or it cannot be opened.

    Example:
        >>> import tempfile
        >>> from dpcohort.deploy.ledger import ClientLedger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ClientLedger.create(Path(folder) / "ward.ledger").close()
        ...     verify_ledger(Path(folder) / "ward.ledger").holds
        True
    """
    state, count = LedgerState(), None
    findings: list[tuple[str, str]] = []
    with closing(LedgerStore(Path(path), writable=False)) as store:
        try:
            count = read_counter(counter_path(path, counter))
        except VerificationError as error:
            findings.append(("counter", str(error)))
        try:
            findings += [("file", problem) for problem in store.problems()]
            for entry in store.entries():
                state.replay(entry)
        except VerificationError as error:
            findings.append(("chain", str(error)))
        else:
            findings += [("output", detail) for detail in _exchanged_outputs(store, state)]
    if count is not None:
        try:
            check_counter(Path(path), count, ledger=state.ledger, hashes=state.hashes)
        except VerificationError as error:
            findings.append(("counter", str(error)))
    findings += [("cap", detail) for detail in _passed_caps(state)]
    if known_head is not None and known_head not in state.hashes:
        findings.append(("head", f"{known_head} is not in the chain: entries are missing."))
    entries, head = state.head
    found = tuple({"what": what, "detail": detail} for what, detail in findings)
    return Verification(entries=entries, head=head, findings=found)


def _exchanged_outputs(store: LedgerStore, state: LedgerState) -> Iterator[str]:
    for accounts in state.accounts.values():
        for account in accounts.values():
            for key, (row, digest) in account.stored().items():
                found = store.output(row)
                if found is None or hashlib.sha256(found).hexdigest() != digest:
                    yield f"the stored bytes of {key} are not those released."


def _passed_caps(state: LedgerState) -> Iterator[str]:
    for dataset, cap in state.caps.items():
        broken = [
            spent_epsilon(cap, window.values())
            for window in state.windows(dataset)
            if not fits_cap(cap, window.values())
        ]
        if broken:
            allowed = f"{cap.epsilon:g} at delta {cap.delta:g} {cap.per.scope}"
            yield f"{dataset} has spent epsilon {max(broken):.6g} of {allowed}."


def exported_lines(path: str | Path) -> Iterator[str]:
    """Every row as one line of JSON, as stored, also where the chain is broken.

    The outputs' bytes stay in the ledger; their hashes are in the rows.

    Example:
        >>> import tempfile
        >>> from dpcohort.deploy.ledger import ClientLedger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ClientLedger.create(Path(folder) / "ward.ledger").close()
        ...     len(list(exported_lines(Path(folder) / "ward.ledger")))
        1
    """
    with closing(LedgerStore(Path(path), writable=False)) as store:
        for entry in store.entries():
            yield canonical_json(asdict(entry))


def back_up(path: str | Path, copy: str | Path) -> None:
    """A whole copy of the ledger, also while it is being written; not of its counter.

    Raises:
        InputError: something is there already, or nothing can be written there.

    Example:
        >>> import tempfile
        >>> from dpcohort.deploy.ledger import ClientLedger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ClientLedger.create(Path(folder) / "ward.ledger").close()
        ...     back_up(Path(folder) / "ward.ledger", Path(folder) / "copy")
        ...     len(list(exported_lines(Path(folder) / "copy")))
        1
    """
    target = Path(copy)
    with closing(LedgerStore(Path(path), writable=False)) as store:
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise InputError.because(
                f"{target} cannot be made: {error.strerror}. Nothing was changed."
            ) from None
        try:
            store.copy_to(target)
        except BaseException:
            target.unlink(missing_ok=True)  # half a copy would pass for a backup
            raise
