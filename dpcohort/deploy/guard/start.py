# SPDX-License-Identifier: Apache-2.0
"""From the owner's files to a guard that is ready, or a refusal before anything is opened wide."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcohort.deploy.guard.data import load_data
from dpcohort.deploy.guard.desk import GuardDesk, Trainer, check_with_sampling
from dpcohort.deploy.guard.owner_ledger import open_ledger, pinnable_terms, write_pin
from dpcohort.deploy.guard.permissions import check_closed_folder, check_unwritable
from dpcohort.deploy.guard.service import GuardService
from dpcohort.deploy.guard.terms import GuardTerms
from dpcohort.deploy.ledger import RunTerms
from dpcohort.engine.lattice import Lattice
from dpcohort.errors import InputError
from dpcohort.plugins import is_named_function

__all__ = [
    "CheckedTerms",
    "check_answer_time",
    "check_terms",
    "open_guard",
]

#: A draw on a busy machine may take this many times as long as the one that was measured.
_SLOWER = 2.0


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


def open_guard(
    terms: GuardTerms | str | Path,
    *,
    data: str | Path,
    ledger: str | Path,
    socket: str | Path,
    counter: str | Path | None = None,
    new_ledger: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> GuardService:
    """A guard that listens; :meth:`~GuardService.start` or ``serve_forever`` makes it answer.

    Args:
        terms: the owner's terms, or their file.
        data: the client's ``.npz`` file.
        ledger: the client's ledger.
        socket: where to listen.
        counter: the ledger's counter, if not beside it.
        new_ledger: make the ledger, which must not be there yet; its id is pinned in the terms,
            and in their file if they came from one.
        log: told one line a request.

    Raises:
        DpcohortError: anything that is not as it must be; nothing is spent and nobody is answered.
    """
    file = None if isinstance(terms, GuardTerms) else terms
    if file is not None:
        check_unwritable(file, "terms")
        terms = pinnable_terms(file) if new_ledger else GuardTerms.from_toml(file)
    assert isinstance(terms, GuardTerms)
    records = load_data(data, terms.model, terms.normalisation)
    checked = check_terms(terms, len(records))
    from dpcohort.deploy.guard.training import LocalTraining

    if is_named_function(terms.model.name):
        # A module of that name in the current folder would be found and run.
        check_closed_folder(Path.cwd(), "model", shared=False)
    training = _OneThread(LocalTraining(terms.model, records))
    for accepted in checked.runs.values():
        check_with_sampling(accepted, training.dimension)
    check_answer_time(checked, training, log=log)
    book = open_ledger(ledger, records, checked, counter=counter, new=new_ledger)
    try:
        if new_ledger:
            if file is not None:
                write_pin(file, book.id)
            terms = replace(terms, ledger_id=book.id)
        desk = GuardDesk(terms, records=len(records), ledger=book, trainer=training, log=log)
        return GuardService(desk, socket, log=log, on_close=book.close)
    except BaseException:
        book.close()
        raise


def check_answer_time(
    checked: CheckedTerms, trainer: Trainer, *, log: Callable[[str], None] = lambda line: None
) -> None:
    """Refuse an ``answer_seconds`` that the largest draw does not keep: its time would tell.

    One step over all records is done and timed, at made-up parameters. Nothing of it is kept.

    Args:
        checked: the terms; with ``answer_seconds = 0`` nothing is timed.
        trainer: computes updates.
        log: told, for the owner, that the time is short.

    Raises:
        InputError: a draw of all records takes longer than ``answer_seconds``.
    """
    every = checked.terms.answer_seconds
    if every == 0:
        return
    # All runs of the file, also closed ones: the longest is what counts.
    steps = max((run.local_steps for run in checked.terms.runs), default=1)
    _full_step(trainer, checked.records)  # the first is slower than all that follow
    started = time.perf_counter()
    _full_step(trainer, checked.records)
    taken = steps * (time.perf_counter() - started)
    enough = math.ceil(20 * _SLOWER * taken) / 20
    said = (
        f"a draw of all {checked.records} records takes about {taken:.3g} s here and "
        f"answer_seconds is {every:g}"
    )
    if taken > every:
        raise InputError.because(
            f"{said}: large batches would be answered later than small ones, which tells their "
            f"size. Set answer_seconds = {enough:g} or more in the terms."
        )
    if _SLOWER * taken > every:
        log(
            f"WARNING: {said}: on a busy machine a large batch may be answered later than a small "
            f"one. Better set answer_seconds = {enough:g} or more in the terms."
        )


def _full_step(trainer: Trainer, records: int) -> None:
    made_up = (0.1 * np.cos(np.arange(trainer.dimension))).astype(np.float32)
    lattice = Lattice(1.0, 1.0)
    trainer.update(made_up, lattice, "poisson", rate=1.0, batch_size=records, step_sizes=[1.0])


class _OneThread:
    """Training with one thread, whatever the process around it uses.

    A record's gradient then has the same bits, and a batch takes the same time, wherever a guard
    is opened and whatever else the machine does.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.dimension, self.layout = trainer.dimension, trainer.layout

    def update(
        self,
        parameters: NDArray[np.float32],
        lattice: Lattice,
        sampler: str,
        *,
        rate: float,
        batch_size: int,
        step_sizes: list[float],
    ) -> NDArray[np.float32]:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._trainer.update(
                parameters,
                lattice,
                sampler,
                rate=rate,
                batch_size=batch_size,
                step_sizes=step_sizes,
            )
        finally:
            torch.set_num_threads(before)
