# SPDX-License-Identifier: Apache-2.0
"""From the owner's files to a guard that is ready, or a refusal before anything is opened wide.

The one ledger that counts for the client's data is found, or made where its owner says so. An empty
ledger lets the whole lifetime budget be spent once more. So a path where nothing is is refused, and
the ledger's id, once pinned in the owner's terms, is held against what is found.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from dpcohort.accounting._distributed import bits_of_sums
from dpcohort.accounting._samplers import sampler_of
from dpcohort.atomic_file import write_text
from dpcohort.consent import CodeFile, code_of, is_allowed_by, keep_allowance, typed
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard._files import (
    GuardedData,
    check_closed_folder,
    check_folders,
    check_private,
    check_unwritable,
    guarded_data,
    identity_beside,
    load_identity,
)
from dpcohort.deploy.guard._handler import GuardHandler, check_with_sampling, numbers_of
from dpcohort.deploy.guard._service import GuardService
from dpcohort.deploy.guard._terms import AcceptedRun, GuardTerms, ModelTerms, with_ledger_id
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.deploy.ledger import ClientLedger, RunTerms, read_state
from dpcohort.deploy.ledger._counter import counter_path
from dpcohort.deploy.ledger._spending import counted_relation, fits_cap, spent_epsilon
from dpcohort.deploy.ledger._terms import AcceptedGroup, evaluation_of
from dpcohort.deploy.secure_aggregation import Identity, MaskedRound, Member, cohort_sha256
from dpcohort.engine import Lattice
from dpcohort.errors import DataMissingError, InputError
from dpcohort.plugins import is_named_function
from dpcohort.runs._noised_metrics import questions_of
from dpcohort.tasks import Task, made_up_targets

#: A draw on a busy machine may take this many times as long as the one that was measured.
_SLOWER = 2.0


def check_terms(terms: GuardTerms, records: int) -> dict[str, RunTerms]:
    """Compute every run of the terms on so many records, and refuse what does not certify.

    Returns:
        The terms of each run that is accepted beforehand, by its name.

    Raises:
        InputError: a batch larger than the data, nobody is allowed to ask, or a lattice of
            distributed noise with which a draw fails or a sum wraps.
        BudgetExceededError: a run's draws at its least noise spend more than its (ε, δ).
    """
    users = set(terms.allowed_users)
    if not users and not terms.same_user:
        raise InputError(
            "allowed_users", given=[], allowed="at least one user, the one the client app runs as"
        )
    if os.geteuid() in users and not terms.same_user:
        raise InputError.because(
            f"allowed_users names user {os.geteuid()}, as whom the guard itself runs: code of that "
            "user can open the data without asking. Run the guard as a user of its own, or, for a "
            "trial only, set same_user = true."
        )
    if 0 in users and not terms.same_user:
        raise InputError.because(
            "allowed_users names root, who can open the data without asking. Run the client app as "
            "a user of its own."
        )
    if any(one.evaluation for one in terms.runs):
        questions_of(terms.model.predicts)
    runs: dict[str, RunTerms] = {}
    for one in terms.runs:
        runs |= one.accepted(records)
    for accepted in runs.values():
        sampler, rate = sampler_of(accepted.sampler), accepted.sampling_rate
        for group in accepted.trust.groups:
            most = sampler.largest_batch(*np.array([records, sampler.batch_size(rate, records)]))
            _check_lattice(group, accepted, int(most))
    return runs


def _check_lattice(pool: AcceptedGroup, terms: RunTerms, most: int) -> None:
    """Hold exponent and modulus against the rule by which plans choose them.

    Args:
        pool: of the run.
        terms: of the run.
        most: records in a batch.
    """
    own = terms.least_noise_multiplier / math.sqrt(pool.honest)
    next_step = "Take it from the plan: dpcohort guard new --plan"
    least = Lattice(own, terms.clip).exponent
    if pool.exponent < least:
        allowed = f"at least {least} for a share of noise of {own:.4g} times the clip"
        raise InputError("exponent", given=pool.exponent, allowed=allowed, next_step=next_step)
    bits = bits_of_sums(pool.cohort_size, pool.exponent, most * 2.0**pool.exponent / own)
    if pool.modulus_bits < bits:
        allowed = f"at least {bits}: sums of {pool.cohort_size} members would not fit fewer bits"
        raise InputError(
            "modulus_bits", given=pool.modulus_bits, allowed=allowed, next_step=next_step
        )


def check_identity(terms: GuardTerms) -> Identity | None:
    """The identity that terms name; None where they name none and none of their runs needs one.

    Raises:
        DataMissingError: there is no such file.
        InputError: the terms name none, or know the client by another key.
    """
    pools = {run.run: group for run in terms.runs for group in run.trust.groups}
    if not terms.identity and not pools:
        return None
    if not terms.identity:
        raise InputError.about(
            "identity",
            f"is missing: noise is distributed in the run {next(iter(pools))!r}, and others know "
            "the client by its key. Make one with: dpcohort guard identity",
        )
    identity = load_identity(terms.identity)
    for run, pool in pools.items():
        if pool.members.get(terms.dataset) != identity.public:
            raise InputError.because(
                f"the members of the run {run!r} do not have {terms.dataset!r} with the key of "
                f"this identity, {identity.public}."
            )
    return identity


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
        data: the client's ``.npz`` file, or its table.
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
    records = guarded_data(data, terms)
    runs = check_terms(terms, len(records))
    identity = check_identity(terms)
    _consented(terms.model, ledger, None if file is None else Path(file).parent)
    if terms.model.weights:
        check_unwritable(terms.model.weights, "weights")
    training = LocalTraining(terms.model, records)
    log(training.how)
    for accepted in runs.values():
        check_with_sampling(accepted, numbers_of(accepted, terms.model, training.dimension))
    check_answer_time(terms, len(records), training, log=log)
    opened = open_ledger(ledger, records, terms, runs, counter=counter, new=new_ledger)
    try:
        if new_ledger:
            if file is not None:
                write_pin(file, opened.id)
            terms = replace(terms, ledger_id=opened.id)
        handler = GuardHandler(
            terms,
            records=len(records),
            tested=records.tested,
            ledger=opened,
            trainer=training,
            identity=identity or identity_beside(ledger),
            log=log,
        )
        log(f"what is released is signed with the key {handler.key}")
        return GuardService(handler, socket, log=log, on_close=opened.close)
    except BaseException:
        opened.close()
        raise


def third_party_code(model: ModelTerms) -> dict[str, CodeFile]:
    """What the terms of a model name beside this package, by name; found and hashed, not loaded.

    Args:
        model: of the terms.

    Raises:
        InputError: it is not on this machine.

    Example:
        >>> from dpcohort.deploy.guard._terms import ModelTerms
        >>> third_party_code(ModelTerms(name="logistic", input_shape=(64,), classes=10))
        {}
    """
    names = [name for name in (model.name, model.predicts.loss) if is_named_function(name)]
    return {name: code_of(name.partition(":")[0]) for name in names}


def allow_third_party_code(
    model: ModelTerms, ledger: str | Path, *, beside: Path | None = None
) -> dict[str, CodeFile]:
    """Write the hashes of the code that a model's terms name beside the ledger, for its owner.

    They are not in the terms: a server may have proposed those.

    Args:
        model: of the terms.
        ledger: the client's ledger, there or not yet.
        beside: the folder of the terms.

    Raises:
        InputError: the code is not on this machine, nothing can be written there, or the ledger
            lies where the terms or the code do.

    Example:
        >>> from dpcohort.deploy.guard._terms import ModelTerms
        >>> model = ModelTerms(name="logistic", input_shape=(64,), classes=10)
        >>> allow_third_party_code(model, "ward.ledger")
        {}
    """
    found = third_party_code(model)
    for code in found.values():
        keep_allowance(code, _allowances(ledger, code, beside))
    return found


def _allowances(ledger: str | Path, code: CodeFile, beside: Path | None) -> Path:
    """Where a client's owner keeps what it allowed; never where a kit could have put it."""
    brought = {code.path.parent, (beside or code.path.parent).resolve()}
    if Path(ledger).resolve().parent in brought:
        raise InputError.because(
            f"the ledger {ledger} lies in the folder of the terms or of {code.path.name}, and "
            "whoever brought these could have brought an allowance too. Keep the ledger in a "
            "folder of its own."
        )
    return Path(f"{ledger}.code.json")


def _consented(model: ModelTerms, ledger: str | Path, beside: Path | None) -> None:
    """Let the code be loaded that the owner allowed, as it was then; refuse any other."""
    for name, code in third_party_code(model).items():
        file = _allowances(ledger, code, beside)
        # A module of that name in the current folder would be found and run.
        check_closed_folder(Path.cwd(), "model", shared=False)
        if file.exists():
            check_unwritable(file, "allowances")
        if not is_allowed_by(code, file):
            raise InputError.because(
                f"the terms name {name}, which is code of somebody: {code}. The owner has not "
                f"allowed it as it is now in {file}. Read it, then: dpcohort guard allow-code "
                f"--terms FILE.toml --ledger {ledger}"
            )
        typed(name)


def try_model(terms: GuardTerms, data: GuardedData | None = None) -> int:
    """Build the model of the terms and take one noisy step with it; nothing of it is kept.

    Args:
        terms: the owner's terms.
        data: the client's records; two made-up ones without.

    Returns:
        The number of trained parameters.

    Raises:
        InputError: the model is not there, does not fit the records, mixes them, or is third-party
            code that is not allowed.

    Example:
        >>> from dpcohort.deploy.guard._terms import ModelTerms
        >>> model = ModelTerms(name="logistic", input_shape=(64,), classes=10)
        >>> try_model(GuardTerms(dataset="ward-7", lifetime_epsilon=4.0, lifetime_delta=1e-5,
        ...                      model=model, allowed_users=(65534,)))
        650
    """
    if data is None:
        inputs = np.zeros((2, *terms.model.input_shape), dtype=np.float32)
        data = GuardedData(inputs, made_up_targets(terms.model.predicts, 2).numpy(), "")
    training = LocalTraining(terms.model, data)
    _seconds_of_a_step(training, len(data))
    return training.dimension


def _seconds_of_a_step(trainer: LocalTraining, records: int) -> float:
    """How long one noisy step over all records takes, at made-up parameters; it is not kept."""
    made_up = (0.1 * np.cos(np.arange(trainer.dimension))).astype(np.float32)
    lattice, started = Lattice(1.0, 1.0), time.perf_counter()
    trainer.update(made_up, lattice, (sampler_of("poisson"), 1.0, records), [1.0])
    return time.perf_counter() - started


def _seconds_of_masking(pool: AcceptedGroup, coordinates: int) -> float:
    """How long masking takes in a made-up cohort of that size; nothing of it is kept."""
    who = {str(i): Identity(os.urandom(32)) for i in range(pool.cohort_size)}
    keys = {name: one.public for name, one in who.items()}
    made_up = replace(pool, members=keys, cohorts={"0": cohort_sha256(keys)})
    members = [Member(name, one, made_up, run="", plan="", ledger="") for name, one in who.items()]
    cards = [one.card for one in members]
    lattice = {"exponent": pool.exponent, "modulus_bits": pool.modulus_bits}
    started = time.perf_counter()
    for _ in range(2):  # a request is checked before it is counted and again when it is computed
        asked = MaskedRound(
            made_up, cards, run="", plan="", round=0, coordinates=coordinates, **lattice
        )
        members[0].check(asked)
    members[0].mask(asked, np.zeros(coordinates, np.int64))
    return time.perf_counter() - started


def check_answer_time(
    terms: GuardTerms,
    records: int,
    trainer: LocalTraining,
    *,
    log: Callable[[str], None] = lambda line: None,
) -> None:
    """Refuse an ``answer_seconds`` that the largest draw does not keep: its time would tell.

    One step over all records is done and timed, at made-up parameters, and where noise is
    distributed masking for the largest cohort, with made-up keys. Nothing of it is kept.

    Args:
        terms: with ``answer_seconds = 0`` nothing is timed.
        records: number of records.
        trainer: computes updates.
        log: told, for the owner, that the time is short.

    Raises:
        InputError: a draw of all records takes longer than ``answer_seconds``.
    """
    every = terms.answer_seconds
    if every == 0:
        return
    # All runs of the file, also closed ones: the longest is what counts.
    steps = max((run.local_steps for run in terms.runs), default=1)
    _seconds_of_a_step(trainer, records)  # the first is slower than all that follow
    taken = steps * _seconds_of_a_step(trainer, records)
    pools = [group for run in terms.runs for group in run.trust.groups]
    masked = ""
    if pools:
        largest = max(pools, key=lambda pool: (pool.cohort_size, pool.threshold))
        taken += _seconds_of_masking(largest, trainer.dimension)
        masked = f", masked for a cohort of {largest.cohort_size},"
    enough = math.ceil(20 * _SLOWER * taken) / 20
    said = (
        f"a draw of all {records} records{masked} takes about {taken:.3g} s here and "
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


def open_ledger(
    path: str | Path,
    data: GuardedData,
    terms: GuardTerms,
    runs: Mapping[str, RunTerms],
    *,
    counter: str | Path | None = None,
    new: bool = False,
) -> ClientLedger:
    """The owner's ledger, with the data registered and the runs accepted.

    Args:
        path: the ledger.
        data: the client's records.
        terms: the owner's terms.
        runs: the terms of each run accepted beforehand, from :func:`check_terms`.
        counter: the ledger's counter, if not beside it.
        new: make the ledger, which must not be there yet. Without this one that is not there is
            refused: an empty ledger would let the whole lifetime budget be spent once more.

    Raises:
        DataMissingError: there is no such ledger.
        InputError: it is not the one the terms pin, it has another cap for these data, others can
            open it, or a new one is asked for where the data have one.
    """
    ledger = _opened(path, counter, terms.ledger_id, new=new)
    try:
        _register(ledger, terms, data.fingerprint)
        known = ledger.accepted(terms.dataset)
        computed = {run.run for run in terms.runs if run.least_noise_multiplier is None}
        decided = ledger.decided(terms.dataset) if terms.ask_owner else {}
        owned = {name: one.run for one in terms.runs for name in (one.run, evaluation_of(one.run))}
        for run, accepted in runs.items():
            if terms.ask_owner and run not in known:
                decision = decided.get(owned[run])
                if decision is None or not decision.accepted:
                    continue  # its owner has not decided, or has refused it
            if run in computed and run in known:
                # The noise was computed then and is fixed since; today's last digit may be another.
                least = known[run].least_noise_multiplier
                accepted = replace(accepted, least_noise_multiplier=least)
            ledger.accept(terms.dataset, run, accepted)
        for closed in terms.closed_runs:
            if closed not in known and closed not in runs:
                allowed = "runs that are accepted here or in the ledger"
                raise InputError("closed_runs", given=closed, allowed=allowed)
        _check_files(path, counter)
    except BaseException:
        ledger.close()
        raise
    return ledger


def decide_run(
    terms: GuardTerms,
    run: str,
    records: int,
    ledger: ClientLedger,
    *,
    accepted: bool,
    reason: str = "",
    identity: Identity,
) -> None:
    """Write the owner's decision on a run of the terms into its ledger, signed.

    Args:
        terms: of the guard, with the run.
        run: its name.
        records: number of records.
        ledger: of the guard, with the data registered or not yet.
        accepted: or refused.
        reason: for the operator, who is told.
        identity: signs.

    Raises:
        InputError: there is no such run, or it is accepted already.
    """
    known, proposed = ledger.accepted(terms.dataset), proposed_run(terms, run).accepted(records)
    if accepted and known.keys() >= proposed.keys():
        raise InputError("run", given=run, allowed="a run that is not accepted already")
    ledger.decide(
        terms.dataset,
        run,
        proposed,
        accepted=accepted,
        reason=reason,
        key=identity.public,
        sign=identity.sign_bytes,
    )


def proposed_run(terms: GuardTerms, run: str) -> AcceptedRun:
    """A run of the terms.

    Raises:
        InputError: they have none of that name.
    """
    found = {one.run: one for one in terms.runs}
    if run not in found:
        allowed = f"one of {', '.join(found) or 'none'}, as [[runs]] of the terms say"
        raise InputError("run", given=run, allowed=allowed)
    return found[run]


def proposal_in_words(
    terms: GuardTerms, run: str, records: int, known: Mapping[str, RunTerms]
) -> list[str]:
    """A proposed run as its owner reads it before deciding, a line for each thing.

    Args:
        terms: of the guard, with the run.
        run: its name.
        records: number of records.
        known: the runs that the ledger has accepted, with their terms.

    Raises:
        DpcohortError: the terms cannot be kept.
    """
    proposed = proposed_run(terms, run)
    found = check_terms(terms, records)
    asked = {name: found[name] for name in proposed.accepted(records)}
    cap, before = terms.cap(), {name: one for name, one in known.items() if name not in asked}
    spends, spent = (
        spent_epsilon(cap, [(one, one.draws) for one in some]) if some else 0.0
        for some in (tuple(asked.values()), tuple(before.values()))
    )
    both = spent_epsilon(cap, [(one, one.draws) for one in {**before, **asked}.values()])
    model, columns = terms.model, () if terms.table is None else terms.table.columns.features
    features = ", ".join(columns) if columns else f"all {math.prod(model.input_shape)} numbers"
    code = "; ".join(f"{name}, {one}" for name, one in third_party_code(model).items())
    left = terms.lifetime_epsilon - both
    verdict = f"{max(0.0, left):.5g} would be left after it"
    if not fits_cap(cap, [(one, one.draws) for one in {**before, **asked}.values()]):
        verdict = "together that is MORE than your data may spend: draws would be refused"
    return [
        _run_in_words(proposed, asked[run]),
        f"Model: {model.name} on {features} of each {terms.unit.name}, for {model.classes} "
        f"{'classes' if model.predicts.predicts_classes else 'output(s)'}.",
        f"Code: {code or 'none but that of dpcohort'}.",
        f"It would spend epsilon {spends:.5g}; accepted before {spent:.5g}, of "
        f"{terms.lifetime_epsilon:g} {terms.per.scope}; {verdict}.",
    ]


def pin_ledger(
    terms: str | Path, ledger: str | Path, *, counter: str | Path | None = None, new: bool = False
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
    check_folders(path, "ledger", shared=False)
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
    lost = "If it is lost, what the data have spent is not known, and nothing more can be."
    place = counter_path(path, counter)
    why = "If these data have one, give its path. For their first one add: --new-ledger"
    if pinned is not None:
        why = (
            f"The terms pin the ledger {pinned}; give its path or put back its newest copy. {lost}"
        )
    elif place.exists():
        why = (
            f"Its counter {place} is there, so there was one; give its new path or put back its "
            f"newest copy. {lost}"
        )
    return DataMissingError(f"there is no ledger at {path}. {why}")


def _check_files(path: str | Path, counter: str | Path | None) -> None:
    check_private(path, "ledger")
    check_private(counter_path(path, counter), "counter")


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
    for field in ("epsilon", "delta", "per", "across_runs", "neighbours", "unit"):
        said, fixed = wanted.to_dict()[field], known.to_dict()[field]
        if said != fixed:
            raise InputError(
                f"lifetime_{field}" if field in ("epsilon", "delta") else field,
                given=said,
                allowed=f"{fixed!r}, fixed when {terms.dataset!r} was registered in the ledger",
            )


def terms_in_words(terms: GuardTerms, records: int) -> list[str]:
    """The terms as a person reads them when a guard starts: one line for each thing said.

    Args:
        terms: the owner's terms.
        records: number of records.

    Raises:
        DpcohortError: as :func:`check_terms`.

    Example:
        >>> from dpcohort.deploy.guard._terms import ModelTerms
        >>> model = ModelTerms(name="logistic", input_shape=(64,), classes=10)
        >>> terms = GuardTerms(dataset="ward-7", lifetime_epsilon=4.0, lifetime_delta=1e-5,
        ...                    model=model, allowed_users=(65534,))
        >>> print(terms_in_words(terms, 600)[0])
        ward-7: 600 records may spend epsilon 4 at delta 1e-05 over all runs (summed, zero-out).
    """
    runs = check_terms(terms, records)
    unit = terms.unit.several
    outputs = "classes" if terms.model.predicts.predicts_classes else "output(s)"
    lines = [
        f"{terms.dataset}: {records} {unit} may spend epsilon {terms.lifetime_epsilon:g} "
        f"at delta {terms.lifetime_delta:g} {terms.per.scope} ({terms.across_runs}, "
        f"{terms.neighbours}).",
        f"Model: {terms.model.name} on {'x'.join(map(str, terms.model.input_shape))} with "
        f"{terms.model.classes} {outputs}, and no other.",
        *([] if not terms.model.task else [f"Task: {_task_in_words(terms.model.predicts)}"]),
        *_persons_in_words(terms),
        *_weights_in_words(terms.model),
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
            lines.append(_run_in_words(run, runs[run.run]))
            if datetime.now(UTC).date() > run.until:
                lines.append(f"WARNING: the permit of {run.run} has ended: nothing is spent on it.")
            cap, alone = terms.cap(), [(runs[run.run], 1)]
            if not fits_cap(cap, alone):  # its first draw would be refused, the data untouched
                lines.append(
                    f"WARNING: no draw of {run.run} fits the lifetime cap: alone it counts as "
                    f"epsilon {spent_epsilon(cap, alone):.5g} under "
                    f"{counted_relation(cap, alone)}, or its delta is larger than the cap's."
                )
    if terms.closed_runs:
        lines.append(f"Closed, not answered: {', '.join(terms.closed_runs)}.")
    if not terms.runs:
        lines.append("No run is accepted here; accept one with: dpcohort ledger accept")
    return lines


def _task_in_words(task: Task) -> str:
    said = {key: value for key, value in task.to_dict().items() if key not in ("kind", "loss")}
    more = "".join(f", {key} {value}" for key, value in said.items())
    return f"{task.kind}, trained with the loss {task.loss} and no other{more}."


def _persons_in_words(terms: GuardTerms) -> list[str]:
    if (persons := terms.persons) is None:
        return []
    return [
        f"Unit: all rows of a person, of which {persons.rows_per_person} are used at most; their "
        f"gradients are {'added' if persons.person_rows == 'sum' else 'averaged'} and clipped as "
        "one."
    ]


def _weights_in_words(model: ModelTerms) -> list[str]:
    if not model.weights:
        return []
    stay = f" Not trained: {', '.join(model.frozen)}." if model.frozen else ""
    whose = model.weights_source or "nobody said whose"
    return [
        f"It starts from {model.weights} (sha256 {str(model.weights_sha256)[:12]}, {whose}).{stay}"
    ]


def _run_in_words(run: AcceptedRun, terms: RunTerms) -> str:
    plan = f"plan {run.plan[:12]}" if run.plan else "any plan"
    said = (
        f"Run {run.run} ({plan}): at most {terms.draws} draws of {terms.local_steps} local steps "
        f"in {terms.rounds} rounds, batches of {run.batch_size} ({terms.sampler}), clip at most "
        f"{terms.clip:g}, noise multiplier at least {terms.least_noise_multiplier:.5g}: epsilon "
        f"{terms.certified_epsilon():.5g} of {terms.epsilon:g} at delta {terms.delta:g} "
        f"({terms.neighbours})."
    )
    if terms.is_timed:
        said += f" Until {terms.until} (UTC) and no longer."
    said += terms.reporting.sentence() + terms.trust.sentence(terms)
    return said if run.evaluation is None else said + run.evaluation.sentence()
