# SPDX-License-Identifier: Apache-2.0
"""``verify``: every promise of a run checked again, from the ledger and the plan alone.

Receipts are what is being judged, so nothing in them is believed: draws and reports are counted
from the ledger, whatever it says; the ledger is held against the schedule of the hashed plan, and
the epsilon is computed anew by the independent accountant. Each round of an adaptive plan is
decided again: the rule sees what it saw, gets the answers that are written down, and must come to
the cohort that is written down. A rule that looks at updates, or one of somebody else, cannot be
asked again; its cohorts are held against the caps alone.

A private training cannot be computed again by anybody. What is not checked is somebody's word, and
``Verification.whose_word`` says whose.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from dpcohort._validate import IntArray, choice
from dpcohort.accounting import Charge
from dpcohort.accounting._charges import read_charge
from dpcohort.adaptive import AdaptiveRule
from dpcohort.adaptive._rule import RecordedRule, rule_cohort
from dpcohort.data import load_partition
from dpcohort.errors import DpcohortError, InputError, VerificationError
from dpcohort.limits import LARGEST_CONFIG, read_bounded
from dpcohort.plan import Plan
from dpcohort.planning._participation import CappedRule, FixedCohorts
from dpcohort.plugins import RULES
from dpcohort.round_record import RoundRecord
from dpcohort.runs._aggregation_record import PLANS_OWN, aggregation_for
from dpcohort.runs._draw_signatures import DrawSignatures, check_signatures
from dpcohort.runs._earlier_runs import broken_leavers, segment_of
from dpcohort.runs._folder import (
    BEFORE,
    CHARGES,
    CHECKPOINTS,
    CONFIG,
    CONTINUED,
    LEDGER,
    MODEL,
    PARTITION,
    PLAN,
    RECEIPTS,
    RESULT,
    ROUNDS,
    SETTINGS,
    SIGNATURE,
    SIGNATURES,
    checkpoint_files,
    find_run,
    read_checkpoint,
    read_json,
    read_log,
    settings_sha256,
)
from dpcohort.runs._journal import Journal, journal_header, planned_draws
from dpcohort.runs._later_charges import later_charges
from dpcohort.runs._paid_evaluation import results_again
from dpcohort.runs._provenance import (
    FLOATING_POINT,
    RunKind,
    kind_of,
    source_of,
    whose_word,
)
from dpcohort.runs._receipts import Receipt, make_receipts, read_receipts
from dpcohort.runs._seal import changes_since_sealed, seal_of, signer_of, unsealed
from dpcohort.runs._success import task_of
from dpcohort.text_files import finite_json, parse_toml

_Content = TypeVar("_Content")

#: How often a run that is being trained is looked at before what was found counts.
_LOOKS = 5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a verification found.

    Attributes:
        kind: ``overspent``, ``mismatch`` and ``required`` (what was asked for is not so) fail the
            verification, ``note`` does not.
        subject: the client or the file.
        message: what was found, with the numbers.
    """

    kind: Literal["overspent", "mismatch", "required", "note"]
    subject: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The outcome for one run.

    Attributes:
        path: the run folder.
        plan: hash of the plan; empty if it cannot be read.
        kind: ``private``, ``simulation`` or ``not private``; empty without a plan.
        finished: all rounds are done and the result is written; otherwise what was spent so far was
            checked.
        clients: drawn private clients whose promise was checked.
        rounds: rounds in the ledger.
        tightest: largest share of a budget that was spent, over the clients; infinite where
            raw reports were used.
        findings: everything found.
        honest: members on whom each promise counts; 1 where trust is local.
        alone_epsilon: where trust is distributed, the largest epsilon of a client that all others
            collude against, charges included; None elsewhere.
        seal: hash of the result with the hashes of all files; empty of a run that is not finished.
        signed_by: public key of the signature of the seal; empty where there is none.
        guards: which clients' guards signed their own draws; empty where none does.
        whose_word: what was computed again, and whose word is taken for what was not.
    """

    path: str
    plan: str
    kind: RunKind | Literal[""] = ""
    finished: bool = False
    clients: int
    rounds: int
    tightest: float
    findings: tuple[Finding, ...]
    honest: int = 1
    alone_epsilon: float | None = None
    seal: str = ""
    signed_by: str = ""
    guards: str = ""
    whose_word: Mapping[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every promise is kept and everything fits together."""
        return all(finding.kind == "note" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {**asdict(self), "holds": self.holds}
        if self.alone_epsilon is None:
            del plain["honest"], plain["alone_epsilon"]
        if not self.guards:
            del plain["guards"]
        return plain


def verify_run(
    path: str | Path, *, method: str = "auto", require: str = "", key: str = ""
) -> Verification:
    """Check a run folder: plan, ledger, receipts, checkpoints, model and result.

    A run that is being trained meanwhile, or that a crash stopped, is checked as far as it came.

    Args:
        path: the run folder.
        method: accountant of the second opinion, as in ``certify_epsilon``.
        require: ``private``: that the run is not is a finding, too.
        key: public key, hexadecimal: that the run is not signed by it is a finding, too.

    Raises:
        DataMissingError: there is no run.
        InputError: ``require`` or ``key`` is nothing that can be asked for.
    """
    folder = find_run(path)
    if require:
        choice("require", require, ["private"])
    if key and not re.fullmatch("[0-9a-f]{64}", key):
        allowed = "a public key, 64 hexadecimal digits (dpcohort guard identity FILE prints it)"
        raise InputError("key", given=key, allowed=allowed)
    try:
        plan = Plan.load(folder / PLAN)
    except DpcohortError as error:
        broken = Finding(kind="mismatch", subject="plan.json", message=str(error))
        return Verification(
            path=str(path), plan="", clients=0, rounds=0, tightest=0.0, findings=(broken,)
        )
    for _ in range(_LOOKS):
        before = _stage(folder)
        found = _verified(str(path), folder, plan, method, require, key)
        if found.holds or _stage(folder) == before:
            break  # nobody has written while the files were read
    return found


def _stage(folder: Path) -> tuple[object, ...]:
    """How far a run has come, by its files."""
    found: list[object] = [(folder / RESULT).exists()]
    for name in (LEDGER, RECEIPTS):
        with suppress(OSError):
            status = (folder / name).stat()
            found.append((status.st_size, status.st_mtime_ns))
    return tuple(found)


def _verified(
    path: str, folder: Path, plan: Plan, method: str, require: str, key: str
) -> Verification:
    check = _Check(folder, plan)
    check.before(method)
    check.ledger()
    check.rounds()
    truth = check.certified(method)
    check.receipts(truth)
    check.files()
    check.result()
    kind = check.kind(require)
    signed_by = check.signer(key)
    guards = check.guards()
    counted, total = len(check.counted), plan.training.rounds
    if not check.finished:
        check.note("run", f"unfinished: {counted} of {total} rounds are counted.")
    elif counted < total:
        words = f"the run is finished but only {counted} of {total} rounds are counted."
        check.wrong(LEDGER, words)
    held = [
        r.in_all()
        for r in truth
        if not r.public
        and (r.spent_draws or r.before or r.charged or (r.reports or {}).get("spent"))
    ]
    shares = [  # raw reports are certified by nothing
        math.inf if r.certified_epsilon is None else r.certified_epsilon / r.promised_epsilon
        for r in held
        if r.promised_epsilon
    ]
    alone = [r.trust["alone_epsilon"] for r in held if r.trust is not None]
    return Verification(
        path=path,
        plan=plan.sha256,
        kind=kind,
        finished=check.finished,
        clients=len(held),
        rounds=counted,
        tightest=max(shares, default=0.0),
        findings=tuple(check.findings),
        honest=plan.noise.honest,
        alone_epsilon=max(alone, default=None),
        seal=check.seal,
        signed_by=signed_by,
        guards=guards.summary,
        whose_word=whose_word(kind, check.run_settings),
    )


class _Check:
    """One verification under way: the folder, what its ledger says, and what was found.

    All that a training writes is read at once, and the ledger last: as it is written first, it has
    whatever the others tell of, also while the run goes on.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self.run_settings: dict[str, Any] = {}
        self._later: tuple[Charge, ...] = ()
        self.findings: list[Finding] = []
        self.settings()
        self._result: dict[str, Any] | None = None
        self.finished = (folder / RESULT).exists()
        if self.finished:
            self._result = self._read("result.json", lambda: read_json(folder / RESULT))
        self._has_model = (folder / MODEL).exists()
        self._receipts = self._read("receipts", lambda: read_receipts(folder / RECEIPTS))
        self._kept = self._checkpoints()
        self._recorded = self._read(ROUNDS, lambda: read_log(folder / ROUNDS))
        self._entries = self._read(LEDGER, lambda: read_log(folder / LEDGER))
        #: As the ledger says, whatever the plan says.
        self.draws = np.zeros(len(plan.population), dtype=np.int64)
        self.reports = np.zeros(len(plan.population), dtype=np.int64)
        self.counted: set[int] = set()
        self._asked: defaultdict[int, set[int]] = defaultdict(set)
        self._early: list[int] = []
        planned = enumerate(plan.participation.planned)
        self._cohorts: dict[int, list[int]] = {round: one.tolist() for round, one in planned}

    def wrong(self, subject: str, message: str) -> None:
        self.findings.append(Finding(kind="mismatch", subject=subject, message=message))

    def overspent(self, subject: str, message: str) -> None:
        self.findings.append(Finding(kind="overspent", subject=subject, message=message))

    def required(self, subject: str, message: str) -> None:
        self.findings.append(Finding(kind="required", subject=subject, message=message))

    def note(self, subject: str, message: str) -> None:
        self.findings.append(Finding(kind="note", subject=subject, message=message))

    def _read(self, name: str, read: Callable[[], _Content]) -> _Content | None:
        """A file's content; None where it cannot be read, and that is a finding."""
        try:
            return read()
        except DpcohortError as error:
            self.wrong(name, str(error))
            return None

    def settings(self) -> None:
        """``run.json`` is of this plan, and its aggregation one that goes with it."""
        found = self._read("run.json", lambda: read_json(self._folder / SETTINGS))
        if found is not None:
            self.run_settings = found
            if found.get("plan") != self._plan.sha256:
                self.wrong(
                    "run.json",
                    f"the run was begun with the plan {str(found.get('plan'))[:16]}..., but "
                    f"plan.json is {self._plan.sha256[:16]}....",
                )
            for words, is_wrong in _aggregation_problems(
                found.get("aggregation"), self._plan, self._folder / CONFIG
            ):
                (self.wrong if is_wrong else self.note)("run.json", words)
        if source_of(self.run_settings) == "floating point":
            self.overspent("run", FLOATING_POINT)
        self._charges()

    def _charges(self) -> None:
        """What was paid after the plan was made is as the folder keeps it, in a proved order."""
        self._later = self._read(CHARGES, lambda: later_charges(self._folder, self._plan)) or ()

    def before(self, method: str) -> None:
        """The runs before are as the plan says, and nobody left one with a broken promise.

        Every segment of the plan is counted again from the ledger that is kept of it, and every
        client that left must have kept its promise until then.
        """
        parts: list[tuple[Path, Plan]] = []
        earlier = self._plan.past.segments
        for number, segment in enumerate(earlier, start=1):
            place = self._folder / BEFORE / str(number)
            subject = f"before/{number}"
            try:
                old = Plan.load(place / PLAN)
                if (old.sha256, old.past.segments) != (segment.plan, earlier[: number - 1]):
                    self.wrong(subject, "its plan is not the one that the run goes on from.")
                elif not set(old.past.paid.charges) <= set(self._plan.past.paid.charges):
                    self.wrong(subject, "the plan does not count what was paid before that run.")
                elif segment_of(place, old) != segment:
                    self.wrong(subject, "what the plan says was spent is not in its ledger.")
                else:
                    parts.append((place, old))
            except DpcohortError as error:
                self.wrong(subject, str(error))
        if len(parts) == len(earlier):
            following = [*(old for _, old in parts[1:]), self._plan]
            for number, ((place, old), new) in enumerate(zip(parts, following, strict=False)):
                self._leavers(place, old, new, f"left after run {number + 1}", method)
        if (self._folder / CONTINUED).exists():
            said = self._read("continued.json", lambda: read_json(self._folder / CONTINUED))
            self.note("run", f"it goes on in {(said or {}).get('run')}.")

    def _leavers(self, place: Path, old: Plan, new: Plan, when: str, method: str) -> None:
        paid = (*self._plan.past.paid.charges, *self._later)
        for receipt in broken_leavers(old, place, new.population, paid, method):
            whole = receipt.in_all()
            words = f"{when}, having spent more than it promised: "
            words += f"epsilon {whole.certified_epsilon} of {whole.promised_epsilon}."
            self.overspent(receipt.client, words)

    def ledger(self) -> None:
        """Count what the ledger says, and hold it against the plan."""
        entries, participation = self._entries, self._plan.participation
        for words in self._plan.reports.broken:
            self.overspent("run", words)
        if entries is None:
            return
        if not entries or entries[0] != journal_header(self._plan):
            self.wrong(LEDGER, "its first line is not that of this plan's ledger.")
        lines = entries[1:]
        before = len(self.findings)
        count = {FixedCohorts.kind: self._fixed_line, CappedRule.kind: self._adaptive_line}
        for line, entry in enumerate(lines, start=2):
            count[participation.kind](line, entry)
        missing = sorted(set(range(max(self.counted, default=-1) + 1)) - self.counted)
        self._in_order(LEDGER, lines)
        if missing:
            self.wrong(LEDGER, f"round {missing[0]} is missing though later rounds are counted.")
        for k, words in participation.beyond(self.draws, self.reports):
            self.wrong(self._plan.population.ids[k], f"{LEDGER} counts {words}.")
        for rule in participation.deciding if len(self.findings) == before else ():
            self._choices(lines, rule)
        for line in self._early:
            self.wrong(LEDGER, f"line {line} comes before what it follows from.")

    def _fixed_line(self, line: int, entry: Mapping[str, Any]) -> None:
        round, counted = entry.get("round"), entry.get("draws")
        if type(round) is not int or not isinstance(counted, dict) or len(entry) != 2:
            self.wrong(LEDGER, f"line {line} is not a count of a round.")
            return
        for client, count in counted.items():
            positions = self._positions([client])
            if positions is None or not isinstance(count, int) or count < 0:
                self.wrong(LEDGER, f"line {line} counts {count!r} draws of {client!r}.")
            else:
                self.draws[positions] += count
        if self._is_new_round(line, round):
            planned = planned_draws(self._plan, round)
            for client in sorted({*counted, *planned}):
                given, wanted = counted.get(client, 0), planned.get(client, 0)
                if given != wanted:
                    words = (
                        f"{LEDGER} counts {given} draws in round {round}, the plan has {wanted}."
                    )
                    self.wrong(client, words)
        self.counted.add(round)

    def _adaptive_line(self, line: int, entry: Mapping[str, Any]) -> None:
        kind = next((key for key in ("reports", "answers", "cohort") if key in entry), "")
        round, positions = entry.get("round"), self._positions(entry.get(kind))
        if positions is None or set(entry) != {"round", kind} or not isinstance(round, int):
            self.wrong(LEDGER, f"line {line} is no entry of this plan.")
        elif kind == "cohort":
            np.add.at(self.draws, positions, 1)
            self._is_new_round(line, round)
            if len(positions) != self._plan.training.cohort_size:
                self.wrong(LEDGER, f"round {round} has {len(positions)} draws.")
            self._cohorts[round] = positions
            self.counted.add(round)
        elif not 0 <= round < self._plan.training.rounds:
            self.wrong(LEDGER, f"round {round} is not in the plan (line {line}).")
        elif round in self.counted or (
            kind == "answers" and not self._asked[round] >= {*positions}
        ):
            self._early.append(line)
        if kind == "reports" and positions is not None and isinstance(round, int):
            np.add.at(self.reports, positions, 1)
            self._asked[round] |= {*positions}

    def _positions(self, names: object) -> list[int] | None:
        if not isinstance(names, list | dict):
            return None
        try:
            return [self._plan.population.index_of(name) for name in names]
        except (DpcohortError, TypeError):
            return None

    def _is_new_round(self, line: int, round: int) -> bool:
        if round in self.counted:
            self.wrong(LEDGER, f"round {round} is counted twice (line {line}).")
        elif not 0 <= round < self._plan.training.rounds:
            self.wrong(LEDGER, f"round {round} is not in the plan (line {line}).")
        else:
            return True
        return False

    def _choices(self, lines: list[dict[str, Any]], rule: AdaptiveRule) -> None:
        """Decide every round again from what is written down."""
        if why := _cannot_be_asked(self._plan, rule):
            self.note(LEDGER, why)
            return
        journal = Journal(self._plan)
        try:
            for entry in lines:
                journal.replay(entry)
        except VerificationError as error:
            self.wrong(LEDGER, str(error))
            return
        over_network = self.run_settings.get("engine") == "flower"
        # A lost report of a seeded run is made again as the very same one, and a guard gives the
        # one that it has stored.
        repeats = over_network or source_of(self.run_settings) == "seed"

        def written(round: int, asked: IntArray) -> dict[int, float]:
            """The answers of a round, if they are of those that the rule asks."""
            known, counted = journal.answers(round), journal.asked(round)
            # Over a network a report that was counted and asked for may not have come.
            reported, uncounted = counted if over_network else set(known), set(known) - counted
            if reported != {int(k) for k in asked} or uncounted:
                raise VerificationError("the clients that reported are not those the rule asks.")
            return known

        for round, cohort in sorted(self._cohorts.items()):
            try:
                view = journal.view(round, repeats=repeats)
                again = rule_cohort(rule, view, partial(written, round)).tolist()
            except DpcohortError as error:
                self.wrong(LEDGER, f"round {round}: {error}")
                continue
            if again != cohort:
                words = f"round {round} has another cohort than the rule comes to from the reports."
                self.wrong(LEDGER, words)

    def rounds(self) -> None:
        """``rounds.jsonl`` tells of the counted rounds, each once, and nothing it must not tell."""
        entries = self._recorded
        if entries is None:
            return
        known = {field.name for field in fields(RoundRecord)}
        for line, entry in enumerate(entries, start=1):
            unknown = sorted(set(entry) - known)
            if unknown:
                self.wrong(ROUNDS, f"line {line} tells {unknown[0]!r}, which no run does.")
            if not self._is_planned(entry):
                self.wrong(ROUNDS, f"line {line} is not the cohort and noise of the plan.")
        self._in_order(ROUNDS, entries)
        done = Counter(entry.get("round") for entry in entries)
        for round, times in done.items():
            if times > 1:
                self.wrong(ROUNDS, f"round {round} is recorded twice.")
            if round not in self.counted:
                self.wrong(ROUNDS, f"round {round} was computed but is not in the ledger.")
        total = self._plan.training.rounds
        if self.finished and len(done) < total:
            self.wrong(ROUNDS, f"only {len(done)} of {total} rounds are recorded.")

    def _in_order(self, name: str, entries: Sequence[Mapping[str, Any]]) -> None:
        rounds = [entry["round"] for entry in entries if type(entry.get("round")) is int]
        if rounds != sorted(rounds):
            self.wrong(name, "its rounds are not in their order.")

    def _is_planned(self, entry: Mapping[str, Any]) -> bool:
        """Whether a round's record has the cohort it must have, and noise of the plan's size."""
        round, plan = entry.get("round"), self._plan
        if not isinstance(round, int) or round not in self._cohorts:
            return True  # said elsewhere
        cohort = self._cohorts[round]
        stds = plan.noise_multipliers[cohort] * plan.training.clip / plan.batch_sizes[cohort]
        try:
            reported = np.asarray(entry.get("noise_stds"), dtype=np.float64)
        except (TypeError, ValueError):
            return False
        return bool(entry.get("lost")) or (
            entry.get("clients") == cohort
            and reported.shape == stds.shape
            and bool(np.allclose(reported, stds, rtol=1e-9))
        )

    def certified(self, method: str) -> list[Receipt]:
        """Receipts as they must be, made from the ledger; broken promises are found here."""
        plan = self._plan
        known = ~np.isnan(plan.noise_multipliers) | (self.draws == 0)
        for k in np.flatnonzero(~known):
            words = f"drawn {int(self.draws[k])} times though the plan never draws it."
            self.overspent(plan.population.ids[int(k)], words)
        try:
            plan.verify_certificates(method)
        except VerificationError as error:
            self.overspent("plan.json", str(error))
        truth = make_receipts(
            plan,
            np.where(known, self.draws, 0),
            settings=self.run_settings,
            method=method,
            reports=self.reports,
            later=self._later,
        )
        for receipt in truth:
            if receipt.charged is not None and not receipt.holds:
                whole = receipt.in_all()
                self.overspent(
                    receipt.client,
                    f"promised epsilon {whole.promised_epsilon:.6g} at delta {whole.delta:g} in "
                    f"all; what was paid beside the rounds and the rounds come to "
                    f"{receipt.total_epsilon} at delta {receipt.total_delta}.",
                )
            over = (receipt.certified_epsilon or 0.0) > (receipt.promised_epsilon or math.inf)
            if over:
                self.overspent(
                    receipt.client,
                    f"spent epsilon {receipt.certified_epsilon:.6g} at delta {receipt.delta:g} in "
                    f"{receipt.spent_steps} noisy steps, promised {receipt.promised_epsilon:.6g} "
                    f"(planned {receipt.planned_steps} steps).",
                )
        return truth

    def receipts(self, truth: list[Receipt]) -> None:
        """Every receipt says what is true, and there is one for each client that has one."""
        if self._receipts is None:
            return
        written: dict[str, Receipt] = {}
        for path, receipt in self._receipts:
            if receipt.client in written:
                self.wrong(receipt.client, f"has two receipts ({path.name}).")
            written[receipt.client] = receipt
        for wanted in truth:
            found = written.pop(wanted.client, None)
            if found is not None:
                self._compare(found, wanted)
            elif self.finished:
                self.wrong(wanted.client, "has no receipt.")
        for client in written:
            self.wrong(client, "has a receipt though it was never drawn.")

    def _compare(self, found: Receipt, wanted: Receipt) -> None:
        theirs = asdict(found)
        for key, value in asdict(wanted).items():
            given = theirs[key]
            same = given == value
            if key == "dpcohort":
                continue
            if key == "certified_epsilon":
                same = _about_equal(given, value)
            if key == "trust" and isinstance(given, dict) and isinstance(value, dict):
                same = _about_equal(given.get("alone_epsilon"), value["alone_epsilon"])
                same = same and {**given, "alone_epsilon": 0} == {**value, "alone_epsilon": 0}
            if not same:
                self.wrong(found.client, f"its receipt says {key} = {given!r}; it is {value!r}.")

    def _checkpoints(self) -> list[tuple[str, int, bool]]:
        """Name and next round of every checkpoint, and whether it is of this run's settings."""
        found, owner = [], settings_sha256(self.run_settings)
        for path in checkpoint_files(self._folder / CHECKPOINTS):
            try:
                next_round, _ = read_checkpoint(path)
            except VerificationError as error:
                if path.exists():  # else it was taken away for a newer one
                    self.wrong("checkpoints", str(error))
                continue
            is_own = True
            try:
                read_checkpoint(path, owner=owner)
            except DpcohortError:
                is_own = not path.exists()
            found.append((path.name, next_round, is_own))
        return found

    def files(self) -> None:
        """Checkpoints and partition belong to the run, and a model to one that did all rounds."""
        for name, next_round, is_own in self._kept:
            if not is_own:
                self.wrong("run.json", f"its settings are not those that {name} was made with.")
            uncounted = sorted(set(range(next_round)) - self.counted)
            if uncounted:
                words = f"{name} holds round {uncounted[0]}, which is not in the ledger."
                self.wrong("checkpoints", words)
        partition = self._read("partition.npz", lambda: load_partition(self._folder / PARTITION))
        begun_with = self.run_settings.get("partition")
        sha256 = begun_with.get("sha256") if isinstance(begun_with, dict) else None
        if partition is not None and partition.sha256 != sha256:
            self.wrong("partition.npz", "it is not the one the run was begun with.")
        # The model is written last but for the result, so a crash may come between the two.
        done = min(len(self.counted), len(self._recorded or []))
        if self._has_model and not self.finished and done < self._plan.training.rounds:
            self.wrong(MODEL, "a model of a run that is not finished.")

    def result(self) -> None:
        """No file was changed since the run was finished, and its result is that of its rounds."""
        result = self._result
        if result is None:
            return
        for name, words in changes_since_sealed(self._folder, result):
            self.wrong(name, words)
        for name in unsealed(self._folder):
            self.note(name, "it is no file of a run, and no seal covers it.")
        # Of the average of iterates where there is one.
        rounds = self._recorded or []
        tests = (line.get("test_average") or line.get("test") for line in reversed(rounds))
        self._evaluation(result.get("evaluation"))
        if result.get("test") != next((test for test in tests if test is not None), None):
            self.wrong("result.json", "its test results are not those of the last evaluated round.")

    def _evaluation(self, said: Any) -> None:
        """The evaluation is that of a charge: with noise that keeps it, and what its sums give."""
        if said is None:
            return
        paid = [one for one in self._later if isinstance(said, dict) and one.id == said["charge"]]
        if not paid:
            self.overspent(RESULT, "its evaluation was charged to nobody.")
        for charge in paid:
            place = f"{CHARGES}/{charge.id}.json"
            try:
                released = read_charge(self._folder / place)[1]
                again = results_again(self._plan, task_of(self.run_settings), charge, released)
            except InputError as error:
                self.overspent(place, str(error))
            except (ValueError, KeyError, TypeError, IndexError):
                self.wrong(place, "it does not keep what was released by the evaluation.")
            else:
                if not _alike(finite_json(again), said):
                    self.wrong(RESULT, f"its evaluation is not what the sums in {place} give.")

    @property
    def seal(self) -> str:
        """The seal of the result as it is; empty where there is none."""
        return "" if self._result is None else seal_of(self._result)

    def kind(self, require: str) -> RunKind:
        """Whether the run is private; that it is not is a finding where that is required."""
        kind = kind_of(self._plan, self.run_settings)
        if require and kind != require:
            self.required("run", f"a {require} run is asked for; this is {_KINDS[kind]}.")
        return kind

    def signer(self, key: str) -> str:
        """Who signed the result; another signer than the one asked for is a finding."""
        place, result = self._folder / SIGNATURE, self._result
        if result is None and place.exists():
            self.wrong(SIGNATURE, "a signature of a run that has no result.")
        found = ""
        if result is not None:
            found = self._read(SIGNATURE, lambda: signer_of(self._folder, result)) or ""
        if key and found != key:
            by = f"signed by {found}" if found else "not signed"
            self.required(SIGNATURE, f"the run is {by}; the signature of {key} is asked for.")
        return found

    def _evaluated(self) -> dict[str, str]:
        """Hash of what each client's guard released for an evaluation; empty where nothing is."""
        found: dict[str, str] = {}
        for charge in self._later:
            if charge.what == "evaluation":
                found |= dict.fromkeys(charge.spent, "")
                with suppress(DpcohortError, ValueError, KeyError, TypeError):  # told elsewhere
                    released = read_charge(self._folder / CHARGES / f"{charge.id}.json")[1]
                    sums = np.asarray(released["sums"], "<f4")
                    for names, one in zip(released["groups"], sums, strict=True):
                        if len(names) == 1:  # others sign what they masked
                            found[names[0]] = hashlib.sha256(one.tobytes()).hexdigest()
        return found

    def guards(self) -> DrawSignatures:
        """Signatures of guards over their own draws; a wrong one breaks the run."""
        cohorts = {t: self._cohorts[t] for t in sorted(self.counted) if t in self._cohorts}
        signatures = self._read(
            SIGNATURES,
            lambda: check_signatures(
                self._folder,
                self._plan,
                cohorts,
                self._asked,
                self.run_settings,
                self._evaluated(),
            ),
        )
        for message in (signatures or DrawSignatures()).wrong:
            self.wrong(SIGNATURES, message)
        return signatures or DrawSignatures()


#: What a run is, in words.
_KINDS: dict[RunKind, str] = {
    "private": "a private run",
    "simulation": "a simulation with noise of a seed, which is NOT PRIVATE",
    "not private": "NOT PRIVATE",
}


def _about_equal(given: object, value: object) -> bool:
    """Another accountant may round otherwise; what it may not do is hide spending."""
    if isinstance(given, float) and isinstance(value, float):
        return abs(given - value) <= 1e-3 * max(value, 1e-3)
    return given == value


def _alike(one: Any, other: Any) -> bool:
    """Whether two JSON values say the same, numbers up to rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(_alike(one[key], other[key]) for key in one)
    numbers = all(isinstance(x, int | float) for x in (one, other))
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) if numbers else one == other


def _aggregation_problems(record: Any, plan: Plan, config: Path) -> list[tuple[str, bool]]:
    """What is wrong with the aggregation that ``run.json`` tells of.

    Args:
        record: as ``described_aggregation`` gave it.
        plan: of the run.
        config: the run's configuration; it need not exist.

    Returns:
        Words, and whether they speak against the run; otherwise they are a note.
    """
    if record is not None and (not isinstance(record, dict) or "rule" not in record):
        return [(f"its aggregation is {record!r}, which no run writes.", True)]
    name = "mean" if record is None else str(record["rule"])
    problems = []
    asked = name
    with suppress(OSError, ValueError, AttributeError):
        table = parse_toml(read_bounded(config, LARGEST_CONFIG).decode()).get("aggregation", {})
        asked = str(table.get("rule", "mean"))
    if ":" not in asked and ":" not in name and asked != name:
        problems.append((f"it tells of the aggregation {name}, config.toml of {asked}.", True))
    if name not in RULES["aggregation"]:
        words = f"the aggregation {name} is not of this package; it spends no privacy."
        return [*problems, (words, False)]
    settings = {} if record is None else record.get("settings", {})
    given = {k: v for k, v in dict(settings).items() if v != PLANS_OWN}
    try:
        if not any(str(value).startswith("sha256:") for value in given.values()):
            aggregation_for(plan, name, given)
    except DpcohortError as error:
        problems.append((f"its aggregation cannot be that of this plan: {error}", True))
    return problems


def _cannot_be_asked(plan: Plan, rule: AdaptiveRule) -> str:
    if plan.reports.unrepeatable:
        return plan.reports.unrepeatable
    if rule.watches_updates:
        return f"the rule {rule.name} looks at updates, so its choices were not made again."
    if isinstance(rule, RecordedRule):
        return f"the rule {rule.name} is not of this package; its choices were not repeated."
    return ""
