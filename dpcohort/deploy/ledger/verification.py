# SPDX-License-Identifier: Apache-2.0
"""Check a stored ledger from its first row to its last, and say everything that does not hold."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpcohort.deploy.ledger.counter import Count, MonotoneCounter
from dpcohort.deploy.ledger.ledger import check_counter, counter_path
from dpcohort.deploy.ledger.spending import Spending
from dpcohort.deploy.ledger.state import LedgerState
from dpcohort.deploy.ledger.store import LedgerStore
from dpcohort.errors import VerificationError

__all__ = ["Finding", "Verification", "read_state", "verify_ledger"]


@dataclass(frozen=True)
class Finding:
    """One thing that does not hold.

    Attributes:
        what: ``file``, ``chain``, ``counter``, ``cap``, ``output`` or ``head``.
        detail: in words.
    """

    what: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a check of a ledger found.

    Attributes:
        entries: rows that hold.
        head: hash of the last of them.
        findings: what does not hold; none if all is well.
    """

    entries: int
    head: str
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "findings": [asdict(f) for f in self.findings], "holds": self.holds}


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
        count = MonotoneCounter(counter_path(path, counter)).read()
        state = LedgerState()
        for entry in store.entries():
            state.replay(entry)
    check_counter(Path(path), state, count)
    return state


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
    state = LedgerState()
    findings: list[Finding] = []
    with closing(LedgerStore(Path(path), writable=False)) as store:
        count = _counter_value(path, counter, findings)
        try:
            findings += [Finding("file", problem) for problem in store.problems()]
            for entry in store.entries():
                state.replay(entry)
        except VerificationError as error:
            findings.append(Finding("chain", str(error)))
        else:
            findings += _outputs(store, state)
    if count is not None:
        try:
            check_counter(Path(path), state, count)
        except VerificationError as error:
            findings.append(Finding("counter", str(error)))
    findings += _caps(state)
    if known_head is not None and known_head not in state.hashes:
        findings.append(Finding("head", f"{known_head} is not in the chain: entries are missing."))
    entries, head = state.head
    return Verification(entries=entries, head=head, findings=tuple(findings))


def _counter_value(
    path: str | Path, counter: str | Path | None, findings: list[Finding]
) -> Count | None:
    try:
        return MonotoneCounter(counter_path(path, counter)).read()
    except VerificationError as error:
        findings.append(Finding("counter", str(error)))
        return None


def _outputs(store: LedgerStore, state: LedgerState) -> list[Finding]:
    findings = []
    for dataset, accounts in state.accounts.items():
        for run, account in accounts.items():
            for (round, draw), record in account.draws.items():
                if record.released is None or record.discarded:
                    continue
                found = store.output(record.released)
                if found is None or hashlib.sha256(found).hexdigest() != record.sha256:
                    where = f"{dataset} / {run} / round {round} / draw {draw}"
                    detail = f"the stored bytes of {where} are not those released."
                    findings.append(Finding("output", detail))
    return findings


def _caps(state: LedgerState) -> list[Finding]:
    findings = []
    for dataset, cap in state.caps.items():
        accounts = state.accounts[dataset].values()
        spending = Spending(cap, [(account.terms, len(account.draws)) for account in accounts])
        if not spending.fits():
            detail = (
                f"{dataset} has spent epsilon {spending.epsilon():.6g} of {cap.epsilon:g} at delta "
                f"{cap.delta:g}."
            )
            findings.append(Finding("cap", detail))
    return findings
