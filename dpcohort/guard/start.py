# SPDX-License-Identifier: Apache-2.0
"""From the owner's files to a guard that is ready, or a refusal before anything is opened wide."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dpcohort.client_ledger import ClientLedger, RunTerms
from dpcohort.client_ledger.ledger import counter_path
from dpcohort.errors import InputError
from dpcohort.guard.data import GuardedData, load_data
from dpcohort.guard.permissions import check_closed_folder, check_private, check_unwritable
from dpcohort.guard.service import GuardService
from dpcohort.guard.terms import AcceptedRun, GuardTerms
from dpcohort.named_function import is_named_function

__all__ = ["CheckedTerms", "check_terms", "open_guard", "open_ledger"]


@dataclass(frozen=True, kw_only=True)
class CheckedTerms:
    """Terms that hold together with the data they are for.

    Attributes:
        terms: the terms.
        records: number of records.
        runs: run terms of each run accepted beforehand, by name.
    """

    terms: GuardTerms
    records: int
    runs: dict[str, RunTerms]


def check_terms(terms: GuardTerms, records: int) -> CheckedTerms:
    """Compute every run of the terms on so many records, and refuse what does not certify.

    Raises:
        InputError: a batch larger than the data, or nobody is allowed to ask.
        BudgetExceededError: a run's draws at its least noise spend more than its (ε, δ).
    """
    users = set(terms.allowed_users)
    if not users and not terms.same_user:
        raise InputError(
            "allowed_users", given=[], allowed="at least one user, the one the courier runs as"
        )
    if os.geteuid() in users and not terms.same_user:
        raise InputError.because(
            f"allowed_users names user {os.geteuid()}, as whom the guard itself runs: code of that "
            "user can open the data without asking. Run the guard as a user of its own, or, for a "
            "trial only, set same_user = true."
        )
    if 0 in users and not terms.same_user:
        raise InputError.because(
            "allowed_users names root, who can open the data without asking. Run the courier as a "
            "user of its own."
        )
    runs = {one.run: one.run_terms(records) for one in terms.runs}
    return CheckedTerms(terms=terms, records=records, runs=runs)


def open_ledger(
    path: str | Path, data: GuardedData, checked: CheckedTerms, *, counter: str | Path | None = None
) -> ClientLedger:
    """The owner's ledger, made if there is none, with the data registered and the runs accepted.

    Raises:
        InputError: the ledger has another cap for these data, or others can open it.
    """
    terms = checked.terms
    for place in dict.fromkeys((Path(path).absolute().parent, Path(path).resolve().parent)):
        check_closed_folder(place, "ledger", shared=False)
    if Path(path).exists():
        _check_files(path, counter)
        ledger = ClientLedger(path, counter=counter)
    else:
        ledger = ClientLedger.create(path, counter=counter)
    try:
        _register(ledger, terms, data.fingerprint)
        for run in terms.runs:
            _accept(ledger, terms.dataset, run, checked.runs[run.run])
        for closed in terms.closed_runs:
            _check_known(ledger, terms.dataset, closed)
        _check_files(path, counter)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _check_files(path: str | Path, counter: str | Path | None) -> None:
    check_private(path, "ledger")
    check_private(counter_path(path, counter), "counter")


def _check_known(ledger: ClientLedger, dataset: str, run: str) -> None:
    try:
        ledger.terms(dataset, run)
    except InputError:
        allowed = "runs that are accepted here or in the ledger"
        raise InputError("closed_runs", given=run, allowed=allowed) from None


def _accept(ledger: ClientLedger, dataset: str, run: AcceptedRun, accepted: RunTerms) -> None:
    if run.least_noise_multiplier is None:
        try:
            known = ledger.terms(dataset, run.run)
        except InputError:
            pass
        else:
            # The noise was computed then and is fixed since; today's last digit may be another.
            accepted = replace(accepted, least_noise_multiplier=known.least_noise_multiplier)
    ledger.accept(dataset, run.run, accepted)


def _register(ledger: ClientLedger, terms: GuardTerms, fingerprint: str) -> None:
    wanted, known = terms.cap(fingerprint), ledger.cap(terms.dataset)
    if known is None:
        ledger.register(terms.dataset, wanted)
        return
    if known.fingerprint not in (None, fingerprint):
        raise InputError.because(
            f"the data are not those that {terms.dataset!r} stands for in the ledger. What was "
            "spent on those says nothing about these; give the data their own name and cap."
        )
    for field in ("epsilon", "delta", "across_runs", "neighbours"):
        said, fixed = getattr(wanted, field), getattr(known, field)
        if said != fixed:
            raise InputError(
                field if field in ("across_runs", "neighbours") else f"lifetime_{field}",
                given=said,
                allowed=f"{fixed!r}, fixed when {terms.dataset!r} was registered in the ledger",
            )


def open_guard(
    terms: GuardTerms | str | Path,
    *,
    data: str | Path,
    ledger: str | Path,
    socket: str | Path,
    counter: str | Path | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> GuardService:
    """A guard that listens; :meth:`~GuardService.start` or ``serve_forever`` makes it answer.

    Args:
        terms: the owner's terms, or their file.
        data: the client's ``.npz`` file.
        ledger: the client's ledger; made if there is none.
        socket: where to listen.
        counter: the ledger's counter, if not beside it.
        log: told one line a request.

    Raises:
        DpcohortError: anything that is not as it must be; nothing is spent and nobody is answered.
    """
    if not isinstance(terms, GuardTerms):
        check_unwritable(terms, "terms")
        terms = GuardTerms.from_toml(terms)
    records = load_data(data, terms.model, terms.normalisation)
    checked = check_terms(terms, len(records))
    from dpcohort.guard.desk import GuardDesk, check_with_sampling
    from dpcohort.guard.training import LocalTraining

    if is_named_function(terms.model.name):
        # A module of that name in the current folder would be found and run.
        check_closed_folder(Path.cwd(), "model", shared=False)
    training = LocalTraining(terms.model, records)
    for accepted in checked.runs.values():
        check_with_sampling(accepted, training.dimension)
    book = open_ledger(ledger, records, checked, counter=counter)
    try:
        desk = GuardDesk(terms, records=len(records), ledger=book, trainer=training, log=log)
        return GuardService(desk, socket, log=log, on_close=book.close)
    except BaseException:
        book.close()
        raise
