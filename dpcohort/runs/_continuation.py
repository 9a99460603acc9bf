# SPDX-License-Identifier: Apache-2.0
"""A training goes on with other clients or other budgets: planned anew, from what is left.

``replan`` makes the plan: what each client has spent is counted from the run's ledger, composed
with what the new plan draws, and kept within the new promise. Training with it begins a new run
folder from the model of the old one. The old folder says in ``continued.json`` where it goes on, so
that it goes on once; the new one keeps plan, ledger, settings and partition of every run before it
in ``before/1``, ``before/2``, ..., so that it can be verified without them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dpcohort._validate import whole_number
from dpcohort.accounting import Charge, Segment
from dpcohort.accounting._charges import (
    after_charges,
    charged_out,
    charged_to,
    in_order,
    nothing_left,
    refuse_simulated,
    write_charge,
)
from dpcohort.accounting._segments import exhausted_clients
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.adaptive._rule import RecordedRule
from dpcohort.atomic_file import atomic_writer
from dpcohort.clients import Population
from dpcohort.consent import typed
from dpcohort.errors import BudgetExceededError, InputError, VerificationError
from dpcohort.limits import LARGEST_LOG, LARGEST_PLAN, read_bounded
from dpcohort.plain_text import counted, one_line
from dpcohort.plan import Plan, make_plan
from dpcohort.progress import Progress, silent
from dpcohort.runs._earlier_runs import broken_leavers, segment_of, whole_lines
from dpcohort.runs._folder import (
    BEFORE,
    CHARGES,
    CHECKPOINTS,
    CONTINUED,
    LEDGER,
    PARTITION,
    PLAN,
    RESULT,
    SETTINGS,
    find_run,
    latest_checkpoint,
    open_log,
    read_json,
    remove_receipts,
    settings_sha256,
    write_json,
)
from dpcohort.runs._later_charges import check_later, later_charges
from dpcohort.runs._provenance import source_of
from dpcohort.runs._receipts import make_receipts
from dpcohort.runs._run import Run
from dpcohort.runs._seal import changes_since_sealed, seal_again
from dpcohort.runs._verification import verify_run
from dpcohort.selection import rule_from_settings


def replan(
    run: str | Path,
    clients: Population,
    *,
    rounds: int | None = None,
    cohort_size: int | None = None,
    rule: str | None = None,
    drop_exhausted: bool = False,
    charges: Sequence[Charge] = (),
    seed: int | None = None,
    progress: Progress = silent,
) -> Plan:
    """The plan with which a run goes on, in mid-training or after it.

    Clients are who they were by their ids. One that is not in ``clients`` leaves, one that is new
    joins, and epsilon, delta and size may have changed; an epsilon is the promise for everything,
    past and future. Rule, cohort size, clip and contract stay those of the run.

    Where noise is distributed nobody is twice in a cohort. If everybody was in every round and
    fewer stay, all who stay are in every round.

    Args:
        run: the run folder.
        clients: everybody who takes part from now on.
        rounds: how many more; by default those that the run has left.
        cohort_size: of the rounds to come; by default that of the run.
        rule: name of another rule, with its default settings; needed where the run's own came from
            a package that is not installed.
        drop_exhausted: clients with nothing left leave; otherwise they are refused by name.
        charges: what was paid beside rounds since the plan of the run was made; what its folder
            keeps is counted anyway.
        seed: of the new schedule; drawn and recorded if not given.
        progress: told how many clients are certified.

    Raises:
        DataMissingError: there is no run.
        InputError: it goes on elsewhere already, has no round left and none are asked for, or its
            clients would count on fewer honest members than before, or charges do not say in which
            order they were paid.
        VerificationError: the run does not verify.
        BudgetExceededError: clients have nothing left; each is named, with how much it spent.

    Example:
        >>> import tempfile
        >>> from dpcohort import Training, train
        >>> settings = Training(rounds=2, cohort_size=1, sampling_rate=1.0, dimension=650)
        >>> people = Population.from_arrays(ids=["a"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plan = make_plan(people, settings, seed=0)
        ...     run = train(plan, "logistic", "digits", out=f"{folder}/run", device="cpu")
        ...     larger = Population.from_arrays(ids=["a"], sizes=[90], epsilon=[2.0], delta=1e-5)
        ...     again = replan(f"{folder}/run", larger, rounds=2, seed=1)
        >>> again.histories[0].steps, bool(1.9 < again.certified_epsilon[0] <= 2.0)
        (2, True)
    """
    folder = find_run(run)
    refuse_continued(folder)
    found = verify_run(folder, method="pld")
    wrong = [finding for finding in found.findings if finding.kind != "note"]
    if wrong:
        raise VerificationError(
            f"{folder} does not verify, so what its clients spent is not known: "
            f"{one_line(wrong[0].subject)}: {wrong[0].message} See: dpcohort verify {folder}"
        )
    old = Plan.load(folder / PLAN)
    paid = in_order((*old.past.paid.charges, *later_charges(folder, old), *charges))
    before = (*old.past.segments, segment_of(folder, old))
    left = old.training.rounds - before[-1].rounds
    if rounds is None and left == 0:
        raise InputError.because(
            f"{folder} has done all of its {old.training.rounds} rounds. Say how many more: "
            "--rounds N (in Python rounds=N)."
        )
    more = left if rounds is None else whole_number("rounds", rounds, at_least=1)
    people = _who_goes_on(clients, before, paid, drop=drop_exhausted)
    for receipt in broken_leavers(old, folder, people, paid):
        whole = receipt.in_all()
        raise BudgetExceededError(
            f"{one_line(receipt.client)!r} would leave having spent epsilon "
            f"{whole.certified_epsilon:.6g} of {whole.promised_epsilon:g} that it promised: what "
            "was paid beside the rounds of the run came on top of them. Only a higher promise, "
            "with which it stays in the list, covers that."
        )
    members = _members(old, before, people, cohort_size)
    training = replace(old.training, rounds=more, cohort_size=members)
    guard = "lift" if old.noise.lifted.any() else "refuse"
    common: Any = {"accountant": old.contract, "guard": guard, "seed": seed}
    common |= {"progress": progress, "before": before, "charges": paid}
    common["evaluation"] = old.past.paid.kept or None
    typed(*([rule] if isinstance(rule, str) else ()))
    if not old.participation.deciding:
        name = rule or old.rule
        settings = old.participation.settings if rule in (None, old.rule) else {}
        return make_plan(
            people,
            training,
            selection=rule_from_settings(name, **settings),
            noise_model=old.participation.fixed.noise_model,
            draws=old.schedule.draws,
            **common,
        )
    (chosen,) = old.participation.deciding
    if rule is None and isinstance(chosen, RecordedRule):
        raise InputError.because(
            f"the rule {old.rule!r} is not part of dpcohort: say where it is, "
            "--rule MODULE:CLASS (in Python rule='MODULE:CLASS')."
        )
    common |= old.reports.settings()
    return make_adaptive_plan(people, training, rule=rule or chosen, **common)


def _members(old: Plan, before: tuple[Segment, ...], people: Population, asked: int | None) -> int:
    """How large the cohorts are with which a run goes on.

    Args:
        old: the plan of the run.
        before: what was spent so far.
        people: who goes on.
        asked: a size, if one is asked for.

    Raises:
        InputError: clients would count on fewer honest members than the run did.
    """
    size = old.training.cohort_size
    if asked is not None:
        size = whole_number("cohort_size", asked, at_least=1)
    if not old.noise.only_sums:
        return size
    contract, stay = old.contract, len(people)
    if asked is None and size == len(old.population):
        size = min(size, stay)
    if asked is None and size > stay:
        raise InputError.because(
            f"cohorts have {size} members, {stay} clients go on, and nobody may be twice in a "
            f"cohort with distributed noise. Say a size up to {stay}: --cohort-size N (in Python "
            "cohort_size=N)."
        )
    spent = [one for one in before if any(history.steps for history in one.spent.values())]
    relied = max((segment.honest for segment in spent), default=1)
    needed = relied + contract.dropouts
    while needed - contract.colluders(needed) - contract.dropouts < relied:
        needed += 1
    if size < needed:
        raise InputError.because(
            f"the clients of this run counted on {counted(relied, 'honest member')} of each "
            f"cohort (privacy.colluding = {contract.colluding:g}, privacy.dropouts = "
            f"{contract.dropouts}), and cohorts of {size} have fewer. It goes on in cohorts of at "
            f"least {needed}: let more clients stay or join. Or begin a run of its own, whose "
            "epsilon and delta add to what was spent: docs/how-to/join-leave-change.md."
        )
    return size


def _who_goes_on(
    clients: Population, before: tuple[Segment, ...], charges: tuple[Charge, ...], *, drop: bool
) -> Population:
    """The clients that have something left, each with its whole promise."""
    exhausted = charged_out(clients, charges)
    others = _without(clients, exhausted)
    if others is not None:
        for name, words in exhausted_clients(after_charges(others, charges), before).items():
            paid = charged_to(charges, name)[0]
            more = f" (beside {paid:.4g} that was paid beside the rounds)" if paid else ""
            exhausted[name] = words + more
    if exhausted and not drop:
        raise BudgetExceededError(
            f"{nothing_left(exhausted)}\nRaise their epsilon, take them out of the list, or let "
            "them leave: --drop-exhausted (in Python drop_exhausted=True)."
        )
    kept = _without(clients, exhausted)
    if kept is None:
        raise InputError.because(
            "no client has anything left to go on with. Raise budgets, or end here."
        )
    return kept


def _without(clients: Population, gone: Collection[str]) -> Population | None:
    """The others; None for nobody."""
    kept = [k for k, name in enumerate(clients.ids) if name not in gone]
    if len(kept) == len(clients):
        return clients
    large = clients.allow_large_delta
    some = [clients[k] for k in kept]
    return Population.from_clients(some, allow_large_delta=large) if kept else None


def going_on(plan: Plan, after: str | Path) -> dict[str, NDArray[Any]]:
    """The state of the model that a plan goes on from, if it is the plan to go on from that run.

    Returns:
        Arrays of the newest checkpoint; empty if the run never had one.

    Raises:
        InputError: the plan goes on from another run, or from none.
        VerificationError: the run is not as it was when the plan was made.
    """
    folder = find_run(after)
    last = plan.past.last(
        f"the plan {plan.sha256[:16]}... goes on from no run. Make one that goes on from "
        f"{folder}: dpcohort replan {folder} --clients NEW.csv --out plan.json"
    )
    _check_past(plan, last, folder)
    owner = settings_sha256(read_json(folder / SETTINGS))
    next_round, arrays, _ = latest_checkpoint(folder / CHECKPOINTS, owner=owner)
    if next_round > last.rounds:
        raise VerificationError(
            f"{folder / LEDGER} does not count round {last.rounds}, which was computed. "
            "Nothing is computed without a whole ledger; see: dpcohort verify"
        )
    return arrays


def _check_past(plan: Plan, last: Segment, folder: Path) -> None:
    """What a plan says of the runs before is what their ledgers say."""
    old = Plan.load(folder / PLAN)
    if old.sha256 != last.plan:
        raise InputError.because(
            f"the plan goes on from the run of the plan {last.plan[:16]}..., and "
            f"{folder} has {old.sha256[:16]}.... Give the run that it was made from."
        )
    if plan.past.segments != (*old.past.segments, segment_of(folder, old)):
        raise VerificationError(
            f"{folder} is not as it was when the plan was made: its ledger counts other "
            "draws. What was spent must be in the plan; make it again with dpcohort replan."
        )
    missing = {*old.past.paid.charges, *later_charges(folder, old)} - set(plan.past.paid.charges)
    if missing:
        raise VerificationError(
            f"the plan does not count what was paid beside the rounds of {folder}: "
            f"{', '.join(sorted(charge.title for charge in missing))}. Make it again with dpcohort "
            "replan."
        )


def charge_run(run: str | Path, charge: Charge) -> None:
    """What is paid for the records of a run after its plan was made, counted before it is spent.

    The folder of the run keeps the charge; receipts, ``verify`` and whatever goes on from the run
    add it up.

    Args:
        run: the run folder.
        charge: what will be paid, as one that comes after all charges that the run knows.

    Raises:
        BudgetExceededError: with what the run spent it is more than a client promised.
        VerificationError: the run was changed after it was finished.
        InputError: the run goes on elsewhere, or the charge does not know of another.

    Example:
        >>> import tempfile
        >>> from dpcohort import Training, train
        >>> settings = Training(rounds=2, cohort_size=1, sampling_rate=1.0, dimension=650)
        >>> people = Population.from_arrays(ids=["a"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> paid = Charge(what="evaluation", private=False, promised={"a": (1.0, 1e-5)},
        ...               spent={"a": (0.5, 0.0)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plan = make_plan(people, settings, seed=0)
        ...     run = train(plan, "logistic", "digits", out=f"{folder}/run", device="cpu")
        ...     try:
        ...         charge_run(f"{folder}/run", paid)
        ...     except BudgetExceededError as error:
        ...         print(error)
        evaluation ...: with it 'a' would have spent epsilon 1.49978 ...
    """
    folder = find_run(run)
    with open_log(folder / LEDGER, exclusive=True):
        refuse_continued(folder)
        found = Run.load(folder)
        check_later([charge], found.plan)
        if source_of(found.settings) == "private":
            refuse_simulated([charge])
        known = (*found.plan.past.paid.charges, *later_charges(folder, found.plan))
        unnamed = [one.title for one in known if one.id not in charge.after]
        if unnamed:
            raise InputError.because(
                f"{folder}: {', '.join(unnamed)} was paid for this run, and the config does not "
                "name it. Nothing was spent now: use the config of the run, or name that charge "
                "under [charges]."
            )
        in_order((*known, charge))
        done, plan = (folder / RESULT).exists(), found.plan
        for receipt in make_receipts(
            plan,
            # A run that was stopped may be resumed, and spend all that was planned.
            found.ledger.draws if done else plan.counts,
            settings=found.settings,
            reports=found.reports if done else plan.reports.caps,
            later=(*known[len(plan.past.paid.charges) :], charge),
        ):
            if receipt.client in charge.spent and not receipt.holds:
                whole = receipt.in_all()
                raise BudgetExceededError(
                    f"{charge.title}: with it {one_line(receipt.client)!r} would have spent "
                    f"epsilon {whole.certified_epsilon:.6g} at delta {receipt.total_delta:g}, of "
                    f"{whole.promised_epsilon:g} at {whole.delta:g} that it promised."
                )
        for name, words in changes_since_sealed(folder, read_json(folder / RESULT)) if done else ():
            raise VerificationError(f"{folder / name}: {words} Nothing was spent now.")
        if not done:  # of a stop; what is charged now is not in them
            remove_receipts(folder)
        (folder / CHARGES).mkdir(exist_ok=True)
        write_charge(folder / CHARGES / f"{charge.id}.json", charge)
        if done:
            found.write_receipts()
            seal_again(folder)


def refuse_continued(folder: Path, plan: Plan | None = None, out: Path | None = None) -> None:
    """A run goes on once: twice would spend what is left of every budget twice.

    Args:
        folder: the run.
        plan: the plan that may go on from it, if any.
        out: where that may begin; None where it has begun.

    Raises:
        InputError: it goes on elsewhere.
    """
    if not (folder / CONTINUED).exists():
        return
    said = read_json(folder / CONTINUED)
    place = folder / str(said.get("run"))
    is_same_plan = plan is not None and said.get("plan") == plan.sha256
    if is_same_plan and (out is None or place.resolve() == out.resolve()):
        return
    shown = os.path.normpath(place)
    raise InputError.because(
        f"{folder} goes on in {shown}; going on twice would spend its clients' budgets twice. "
        f"Go on from {shown} instead. (Only if nothing was ever counted there: delete "
        f"{folder / CONTINUED} and begin again.)"
    )


def take_over(plan: Plan, old: Path, folder: Path) -> None:
    """Say in the old folder where it goes on, and keep what proves the past in the new one.

    The old ledger is locked meanwhile: nobody is counting in it, and it is as the plan says.

    Raises:
        InputError: another process trains in the old folder, or it goes on elsewhere.
        VerificationError: its ledger counts other draws than the plan.
    """
    with open_log(old / LEDGER, exclusive=True):
        refuse_continued(old, plan, folder)
        _check_past(plan, plan.past.segments[-1], old)
        for number in range(1, len(plan.past.segments)):
            _copy(old / BEFORE / str(number), folder / BEFORE / str(number))
        _copy(old, folder / BEFORE / str(len(plan.past.segments)))
        if not (old / RESULT).exists():  # no more is counted there, so these are its last
            Run.load(old).write_receipts()
        place = os.path.relpath(folder.resolve(), old.resolve())
        write_json(old / CONTINUED, {"run": place, "plan": plan.sha256})


def _copy(source: Path, target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in (PLAN, SETTINGS, LEDGER, PARTITION):
            limit = LARGEST_PLAN if name == PLAN else LARGEST_LOG
            path = source / name
            content = whole_lines(path) if name == LEDGER else read_bounded(path, limit)
            with atomic_writer(target / name, binary=True) as file:
                file.write(content)
    except OSError as error:
        raise VerificationError(
            f"{source} is not whole ({error.strerror or error}): what was spent in it could "
            "not be proved. See: dpcohort verify"
        ) from None
