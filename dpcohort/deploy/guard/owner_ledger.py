# SPDX-License-Identifier: Apache-2.0
"""The one ledger that counts for a client's data: found, or made where its owner says so.

An empty ledger lets the whole lifetime budget be spent once more. So a path where nothing is is
refused, and the ledger's id, once pinned in the owner's terms, is held against what is found.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpcohort.atomic_file import write_text
from dpcohort.deploy.guard.data import GuardedData
from dpcohort.deploy.guard.permissions import check_closed_folder, check_private, check_unwritable
from dpcohort.deploy.guard.proposal import with_ledger_id
from dpcohort.deploy.guard.terms import AcceptedRun, GuardTerms
from dpcohort.deploy.ledger import ClientLedger, RunTerms, read_state
from dpcohort.deploy.ledger.ledger import counter_path
from dpcohort.errors import DataMissingError, InputError

if TYPE_CHECKING:
    from dpcohort.deploy.guard.start import CheckedTerms

__all__ = ["open_ledger", "pin_ledger", "pinnable_terms", "write_pin"]


def open_ledger(
    path: str | Path,
    data: GuardedData,
    checked: CheckedTerms,
    *,
    counter: str | Path | None = None,
    new: bool = False,
) -> ClientLedger:
    """The owner's ledger, with the data registered and the runs accepted.

    Args:
        path: the ledger.
        data: the client's records.
        checked: the owner's terms.
        counter: the ledger's counter, if not beside it.
        new: make the ledger, which must not be there yet. Without this one that is not there is
            refused: an empty ledger would let the whole lifetime budget be spent once more.

    Raises:
        DataMissingError: there is no such ledger.
        InputError: it is not the one the terms pin, it has another cap for these data, others can
            open it, or a new one is asked for where the data have one.
    """
    terms = checked.terms
    ledger = _opened(path, counter, terms.ledger_id, new=new)
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


def pin_ledger(
    terms: str | Path,
    ledger: str | Path,
    *,
    counter: str | Path | None = None,
    new: bool = False,
) -> str:
    """Write a ledger's id into the owner's terms: from then on no other ledger is served from.

    Args:
        terms: the owner's terms file; its mode and owner stay.
        ledger: the ledger.
        counter: the ledger's counter, if not beside it.
        new: make the ledger, which must not be there yet.

    Returns:
        The id.

    Raises:
        DataMissingError: there is no such ledger.
        InputError: the terms pin another one or cannot be written, or the ledger does not know the
            data.
    """
    found = pinnable_terms(terms)
    if new:
        with _opened(ledger, counter, found.ledger_id, new=True) as made:
            identity = made.id
    else:
        if not Path(ledger).exists():
            raise _missing(ledger, counter, found.ledger_id)
        state = read_state(Path(ledger), counter=counter)
        if found.dataset not in state.caps:
            raise InputError.because(
                f"the ledger {ledger} knows nothing of {found.dataset!r}, so it is not the one of "
                "these data. Give theirs, or make their first one with: --new-ledger"
            )
        identity = state.ledger
    write_pin(terms, identity)
    return identity


def pinnable_terms(terms: str | Path) -> GuardTerms:
    """Terms from a file into which an id can be written; asked before a ledger is made for it.

    Raises:
        InputError: they are not terms, or this user cannot write them.
    """
    check_unwritable(terms, "terms")
    found = GuardTerms.from_toml(terms)
    path = Path(terms).resolve()
    is_ours = os.geteuid() in (0, path.stat().st_uid)
    if not is_ours or not os.access(path.parent, os.W_OK):
        raise InputError.because(
            f"user {os.geteuid()} cannot write {terms}, so no ledger's id can be pinned there. Do "
            "it once as the user of that file, who must be able to write its folder: "
            "dpcohort guard pin --terms FILE --ledger FILE"
        )
    return found


def write_pin(terms: str | Path, identity: str) -> None:
    """Write a ledger's id into a terms file; its mode and owner stay.

    Raises:
        InputError: another id is pinned there, or the file cannot be written.
    """
    path = Path(terms).resolve()
    before = path.stat()
    write_text(path, with_ledger_id(path.read_text(encoding="utf-8"), identity))
    with suppress(PermissionError):  # of a group that this user is not in
        os.chown(path, before.st_uid, before.st_gid)
    os.chmod(path, stat.S_IMODE(before.st_mode))


def _opened(
    path: str | Path, counter: str | Path | None, pinned: str | None, *, new: bool
) -> ClientLedger:
    for place in dict.fromkeys((Path(path).absolute().parent, Path(path).resolve().parent)):
        check_closed_folder(place, "ledger", shared=False)
    if new:
        if pinned is not None:
            raise InputError.because(
                f"the terms pin the ledger {pinned}, and a new one would forget what it counts. "
                "Leave --new-ledger out and give the path of that ledger."
            )
        if Path(path).exists():
            raise InputError.because(
                f"{path} is there already. Leave --new-ledger out to count in it, or give a path "
                "where nothing is. Nothing was changed."
            )
        check_closed_folder(counter_path(path, counter).absolute().parent, "counter")
        return ClientLedger.create(path, counter=counter)
    if not Path(path).exists():
        raise _missing(path, counter, pinned)
    _check_files(path, counter)
    ledger = ClientLedger(path, counter=counter)
    if pinned not in (None, ledger.id):
        ledger.close()
        raise InputError.because(
            f"{path} is the ledger {ledger.id}, and the terms pin {pinned}: what the data have "
            "spent is counted in that one. Give its path; nothing was spent."
        )
    return ledger


def _missing(path: str | Path, counter: str | Path | None, pinned: str | None) -> DataMissingError:
    """No ledger; what to do depends on whether there was one."""
    if pinned is not None:
        why = f"The terms pin the ledger {pinned}; give its path or put back its newest copy"
    elif counter_path(path, counter).exists():
        why = (
            f"Its counter {counter_path(path, counter)} is there, so there was one; give its new "
            "path or put back its newest copy"
        )
    else:
        why = "If these data have one, give its path. For their first one add: --new-ledger"
        return DataMissingError(f"there is no ledger at {path}. {why}")
    return DataMissingError(
        f"there is no ledger at {path}. {why}. If it is lost, what the data have spent is not "
        "known, and nothing more can be."
    )


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
