# SPDX-License-Identifier: Apache-2.0
"""``verify``: every promise of a run checked again, from the ledger and the plan alone.

Receipts are what is being judged, so nothing in them is believed: draws and reports are counted
from the ledger, whatever it says; the ledger is held against the schedule of the hashed plan, and
the epsilon is computed anew by the independent accountant. Each round of an adaptive plan is
decided again: the rule sees what it saw, gets the answers that are written down, and must come to
the cohort that is written down. A rule that looks at updates, or one of somebody else, cannot be
asked again; its cohorts are held against the caps alone.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.adaptive.rule import rule_cohort
from dpcohort.data.partition import load_partition
from dpcohort.errors import DpcohortError, InputError, VerificationError
from dpcohort.plan import Plan
from dpcohort.plan_file import RecordedRule
from dpcohort.round_record import RoundRecord
from dpcohort.runs.aggregation_record import aggregation_problems
from dpcohort.runs.folder import (
    RunFolder,
    checkpoint_files,
    read_checkpoint,
    read_json,
    read_log,
    settings_sha256,
)
from dpcohort.runs.journal import Journal, journal_header, planned_draws
from dpcohort.runs.receipts import (
    FLOATING_POINT,
    FORMER_STAMP,
    Receipt,
    Source,
    make_receipts,
    read_receipts,
    source_of,
)

__all__ = [
    "AdaptiveCount",
    "Finding",
    "Verification",
    "check_adaptive_entries",
    "file_problems",
    "verify_run",
]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: ``overspent`` and ``mismatch`` fail the verification, ``note`` does not.
        subject: the client or the file.
        message: what was found, with the numbers.
    """

    kind: Literal["overspent", "mismatch", "note"]
    subject: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The outcome for one run.

    Attributes:
        path: the run folder.
        plan: hash of the plan; empty if it cannot be read.
        clients: drawn private clients whose promise was checked.
        rounds: rounds in the ledger.
        tightest: largest share of a budget that was spent, over the clients; infinite where
            raw reports were used.
        findings: everything found.
    """

    path: str
    plan: str
    clients: int
    rounds: int
    tightest: float
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether every promise is kept and everything fits together."""
        return all(finding.kind == "note" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "holds": self.holds}


def verify_run(path: str | Path, *, method: str = "auto") -> Verification:
    """Check a run folder: plan, ledger, receipts, checkpoints and model.

    Args:
        path: the run folder.
        method: accountant of the second opinion, as in ``certify_epsilon``.

    Raises:
        DataMissingError: there is no run.
    """
    folder = RunFolder.find(path)
    findings: list[Finding] = []
    try:
        plan = Plan.load(folder.plan)
    except DpcohortError as error:
        findings.append(_mismatch("plan.json", str(error)))
        return Verification(
            path=str(path), plan="", clients=0, rounds=0, tightest=0.0, findings=tuple(findings)
        )
    settings = _checked_settings(folder, plan, findings)
    source = source_of(settings)
    private = settings.get("randomness") == "entropy"
    if source == "floating point":
        findings.append(Finding(kind="overspent", subject="run", message=FLOATING_POINT))
    reports: IntArray | None = None
    if plan.adaptive is not None:
        count = _checked_adaptive(folder, plan, private, findings)
        draws, reports, rounds, cohorts = (
            count.draws,
            count.reports,
            set(count.cohorts),
            count.cohorts,
        )
    else:
        draws, rounds = _checked_ledger(folder, plan, findings)
        cohorts = dict(enumerate(plan.schedule.cohorts.tolist()))
    _check_rounds(folder, plan, rounds, cohorts, findings)
    truth = _certified(plan, draws, source, findings, method, reports)
    _check_receipts(folder, truth, plan, findings)
    findings.extend(_mismatch(*problem) for problem in file_problems(folder, settings, rounds))
    if not folder.result.exists():
        findings.append(Finding(kind="note", subject="run", message="the run is not finished."))
    if folder.result.exists() and len(rounds) < plan.training.rounds:
        findings.append(
            _mismatch(
                folder.ledger.name,
                f"the run is finished but only {len(rounds)} of {plan.training.rounds} rounds are "
                "counted.",
            )
        )
    held = [r for r in truth if not r.public and (r.spent_draws or _reported(r))]
    shares = [  # raw reports are certified by nothing
        math.inf if r.certified_epsilon is None else r.certified_epsilon / r.promised_epsilon
        for r in held
        if r.promised_epsilon
    ]
    return Verification(
        path=str(path),
        plan=plan.sha256,
        clients=len(held),
        rounds=len(rounds),
        tightest=max(shares, default=0.0),
        findings=tuple(findings),
    )


def _reported(receipt: Receipt) -> bool:
    return receipt.reports is not None and receipt.reports["spent"] > 0


def _checked_settings(folder: RunFolder, plan: Plan, findings: list[Finding]) -> dict[str, Any]:
    try:
        settings = read_json(folder.settings)
    except DpcohortError as error:
        findings.append(_mismatch("run.json", str(error)))
        return {}
    if settings.get("plan") != plan.sha256:
        findings.append(
            _mismatch(
                "run.json",
                f"the run was begun with the plan {str(settings.get('plan'))[:16]}..., but "
                f"plan.json is {plan.sha256[:16]}....",
            )
        )
    found = aggregation_problems(settings.get("aggregation"), plan, folder.config)
    for words, is_wrong in found:
        kind: Literal["mismatch", "note"] = "mismatch" if is_wrong else "note"
        findings.append(Finding(kind=kind, subject="run.json", message=words))
    return settings


def _checked_ledger(
    folder: RunFolder, plan: Plan, findings: list[Finding]
) -> tuple[IntArray, set[int]]:
    """Draws of each client as the ledger says, whatever the plan says."""
    draws = np.zeros(len(plan.population), dtype=np.int64)
    rounds: set[int] = set()
    name = folder.ledger.name
    try:
        entries = read_log(folder.ledger)
    except DpcohortError as error:
        findings.append(_mismatch(name, str(error)))
        return draws, rounds
    if not entries or entries[0] != journal_header(plan):
        findings.append(_mismatch(name, "its first line is not that of this plan's ledger."))
    positions = {client: k for k, client in enumerate(plan.population.ids)}
    for line, entry in enumerate(entries[1:], start=2):
        round, counted = entry.get("round"), entry.get("draws")
        if type(round) is not int or not isinstance(counted, dict):  # true is no round
            findings.append(_mismatch(name, f"line {line} is not a count of a round."))
            continue
        for client, count in counted.items():
            if client not in positions or not isinstance(count, int) or count < 0:
                findings.append(
                    _mismatch(name, f"line {line} counts {count!r} draws of {client!r}.")
                )
            else:
                draws[positions[client]] += count
        if round in rounds:
            findings.append(_mismatch(name, f"round {round} is counted twice (line {line})."))
        elif not 0 <= round < plan.training.rounds:
            findings.append(_mismatch(name, f"round {round} is not in the plan (line {line})."))
        else:
            _compare_draws(name, round, counted, planned_draws(plan, round), findings)
        rounds.add(round)
    missing = sorted(set(range(max(rounds, default=-1) + 1)) - rounds)
    if missing:
        findings.append(
            _mismatch(name, f"round {missing[0]} is missing though later rounds are counted.")
        )
    return draws, rounds


def _checked_adaptive(
    folder: RunFolder, plan: Plan, private: bool, findings: list[Finding]
) -> AdaptiveCount:
    """Draws, reports and cohorts as the ledger says, each choice made again."""
    name = folder.ledger.name
    entries: list[dict[str, Any]] = []
    try:
        entries = read_log(folder.ledger)
    except DpcohortError as error:
        findings.append(_mismatch(name, str(error)))
    if not entries or entries[0] != journal_header(plan):
        findings.append(_mismatch(name, "its first line is not that of this plan's ledger."))
    count = check_adaptive_entries(plan, entries[1:], name=name, seeded=not private)
    findings.extend(_mismatch(subject, words) for subject, words in count.problems)
    findings.extend(Finding(kind="note", subject=name, message=words) for words in count.notes)
    if plan.has_raw_reports:
        findings.append(
            Finding(
                kind="overspent",
                subject="run",
                message="cohorts were chosen from raw reports, which carry no noise: NOT PRIVATE, "
                "no promise of any client that reported is kept.",
            )
        )
    return count


def _compare_draws(
    name: str,
    round: int,
    counted: dict[str, Any],
    planned: dict[str, int],
    findings: list[Finding],
) -> None:
    for client in sorted({*counted, *planned}):
        given, wanted = counted.get(client, 0), planned.get(client, 0)
        if given != wanted:
            findings.append(
                _mismatch(
                    client, f"{name} counts {given} draws in round {round}, the plan has {wanted}."
                )
            )


def _check_rounds(
    folder: RunFolder,
    plan: Plan,
    counted: set[int],
    cohorts: Mapping[int, list[int]],
    findings: list[Finding],
) -> None:
    name = folder.rounds.name
    try:
        entries = read_log(folder.rounds)
    except DpcohortError as error:
        findings.append(_mismatch(name, str(error)))
        return
    known = {field.name for field in fields(RoundRecord)}
    for line, entry in enumerate(entries, start=1):
        unknown = sorted(set(entry) - known)
        if unknown:
            findings.append(
                _mismatch(name, f"line {line} tells {unknown[0]!r}, which no run does.")
            )
        if not _is_planned(entry, plan, cohorts):
            findings.append(
                _mismatch(name, f"line {line} is not the cohort and noise of the plan.")
            )
    done = [entry.get("round") for entry in entries]
    for round, times in Counter(done).items():
        if times > 1:
            findings.append(_mismatch(name, f"round {round} is recorded twice."))
        if round not in counted:
            findings.append(
                _mismatch(name, f"round {round} was computed but is not in the ledger.")
            )
    if folder.result.exists() and len(set(done)) < plan.training.rounds:
        findings.append(
            _mismatch(name, f"only {len(set(done))} of {plan.training.rounds} rounds are recorded.")
        )


def _is_planned(entry: Mapping[str, Any], plan: Plan, cohorts: Mapping[int, list[int]]) -> bool:
    """Whether a round's record has the cohort it must have, and noise of the plan's size."""
    round = entry.get("round")
    if not isinstance(round, int) or round not in cohorts:
        return True  # said elsewhere
    cohort = cohorts[round]
    stds = plan.noise_multipliers[cohort] * plan.training.clip / plan.batch_sizes[cohort]
    try:
        told = np.asarray(entry.get("noise_stds"), dtype=np.float64)
    except (TypeError, ValueError):
        return False
    if entry.get("lost"):
        return True
    return (
        entry.get("clients") == cohort
        and told.shape == stds.shape
        and bool(np.allclose(told, stds, rtol=1e-9))
    )


def _certified(
    plan: Plan,
    draws: IntArray,
    source: Source,
    findings: list[Finding],
    method: str,
    reports: IntArray | None,
) -> list[Receipt]:
    """Receipts as they must be, made from the ledger; broken promises are found here."""
    known = ~np.isnan(plan.noise_multipliers) | (draws == 0)
    for k in np.flatnonzero(~known):
        client = plan.population.ids[int(k)]
        findings.append(
            Finding(
                kind="overspent",
                subject=client,
                message=f"drawn {int(draws[k])} times though the plan never draws it.",
            )
        )
    truth = make_receipts(
        plan,
        np.where(known, draws, 0),
        private=source == "private",
        floating_point=source == "floating point",
        method=method,
        reports=reports,
    )
    for receipt in truth:
        if not receipt.holds and receipt.certified_epsilon is not None:
            findings.append(
                Finding(
                    kind="overspent",
                    subject=receipt.client,
                    message=f"spent epsilon {receipt.certified_epsilon:.6g} at delta "
                    f"{receipt.delta:g} in {receipt.spent_steps} noisy steps, promised "
                    f"{receipt.promised_epsilon:.6g} (planned {receipt.planned_steps} steps).",
                )
            )
    return truth


def _check_receipts(
    folder: RunFolder, truth: list[Receipt], plan: Plan, findings: list[Finding]
) -> None:
    try:
        stored = read_receipts(folder.receipts)
    except DpcohortError as error:
        findings.append(_mismatch("receipts", str(error)))
        return
    if not stored and not folder.result.exists():
        findings.append(
            Finding(
                kind="note",
                subject="receipts",
                message="the run is not finished and has no receipts yet.",
            )
        )
        return
    written: dict[str, Receipt] = {}
    for path, receipt in stored:
        if receipt.client in written:
            findings.append(_mismatch(receipt.client, f"has two receipts ({path.name})."))
        written[receipt.client] = receipt
    for wanted in truth:
        found = written.pop(wanted.client, None)
        if found is None:
            if folder.result.exists():
                findings.append(_mismatch(wanted.client, "has no receipt."))
            continue
        _compare_receipt(found, wanted, findings)
    for client in written:
        findings.append(_mismatch(client, "has a receipt though it was never drawn."))


def _compare_receipt(found: Receipt, wanted: Receipt, findings: list[Finding]) -> None:
    ours, theirs = asdict(wanted), asdict(found)
    for key, value in ours.items():
        given = theirs[key]
        same = given == value
        if key == "dpcohort" or (key == "stamp" and given == FORMER_STAMP):
            continue  # what the former stamp left open, the run's own settings say
        if key == "certified_epsilon" and isinstance(given, float) and isinstance(value, float):
            # Another accountant may round otherwise; what it may not do is hide spending.
            same = abs(given - value) <= 1e-3 * max(value, 1e-3)
        if not same:
            findings.append(
                _mismatch(found.client, f"its receipt says {key} = {given!r}; it is {value!r}.")
            )


def _mismatch(subject: str, message: str) -> Finding:
    return Finding(kind="mismatch", subject=subject, message=message)


@dataclass(kw_only=True)
class AdaptiveCount:
    """What an adaptive ledger says.

    Attributes:
        draws: of each client.
        reports: of each client.
        cohorts: by round.
        problems: what is wrong, each with the file or client it is about.
        notes: what could not be checked.
    """

    draws: IntArray
    reports: IntArray
    cohorts: dict[int, list[int]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_adaptive_entries(
    plan: Plan, entries: list[dict[str, Any]], *, name: str, seeded: bool
) -> AdaptiveCount:
    """Count what the lines after the header say, and make every choice again.

    Args:
        plan: of the run.
        entries: the lines after the header.
        name: of the file.
        seeded: a lost report of a seeded run is made again as the very same one.
    """
    count = AdaptiveCount(
        draws=np.zeros(len(plan.population), dtype=np.int64),
        reports=np.zeros(len(plan.population), dtype=np.int64),
    )
    whole = _counted(plan, entries, count, name)
    _check_caps(plan, count, name)
    if whole and not count.problems:
        _check_choices(plan, entries, count, name, seeded=seeded)
    return count


def _counted(plan: Plan, entries: list[dict[str, Any]], count: AdaptiveCount, name: str) -> bool:
    """Add up draws and reports; whether every line is one."""
    whole = True
    for line, entry in enumerate(entries, start=2):
        kind = next((key for key in ("reports", "answers", "cohort") if key in entry), None)
        names = entry.get(kind) if kind is not None else None
        positions = _positions(plan, names)
        expected = {"round", kind}
        round = entry.get("round")
        if positions is None or set(entry) != expected or not isinstance(round, int):
            count.problems.append((name, f"line {line} is no entry of this plan."))
            whole = False
            continue
        if not 0 <= round < plan.training.rounds:
            count.problems.append((name, f"round {round} is not in the plan (line {line})."))
            whole = False
        if kind == "reports":
            np.add.at(count.reports, positions, 1)
        elif kind == "cohort":
            np.add.at(count.draws, positions, 1)
            if round in count.cohorts:
                count.problems.append((name, f"round {round} is counted twice (line {line})."))
            if len(positions) != plan.training.cohort_size:
                count.problems.append((name, f"round {round} has {len(positions)} draws."))
            count.cohorts[round] = positions
    return whole


def _positions(plan: Plan, names: object) -> list[int] | None:
    if not isinstance(names, list | dict):
        return None
    try:
        return [plan.population.index_of(name) for name in names]
    except (DpcohortError, TypeError):
        return None


def _check_caps(plan: Plan, count: AdaptiveCount, name: str) -> None:
    missing = sorted(set(range(max(count.cohorts, default=-1) + 1)) - set(count.cohorts))
    if missing:
        words = f"round {missing[0]} is missing though later rounds are counted."
        count.problems.append((name, words))
    for what, made, cap in (
        ("draws", count.draws, plan.schedule.counts),
        ("reports", count.reports, plan.report_caps),
    ):
        for k in np.flatnonzero(made > cap).tolist():
            words = f"{name} counts {int(made[k])} {what}, the cap is {int(cap[k])}."
            count.problems.append((plan.population.ids[k], words))


def _check_choices(
    plan: Plan,
    entries: list[dict[str, Any]],
    count: AdaptiveCount,
    name: str,
    *,
    seeded: bool,
) -> None:
    """Decide every round again from what is written down."""
    assert plan.adaptive is not None
    why, rule = _cannot_be_asked(plan), plan.adaptive.rule
    if why:
        count.notes.append(why)
        return
    journal = Journal(plan)
    try:
        for entry in entries:
            journal.replay(entry)
    except VerificationError as error:
        count.problems.append((name, str(error)))
        return
    for round, cohort in sorted(count.cohorts.items()):
        answers = journal.answers(round)

        def written(asked: IntArray, known: Mapping[int, float] = answers) -> dict[int, float]:
            if set(known) != {int(k) for k in asked}:
                raise VerificationError("the clients that reported are not those the rule asks.")
            return dict(known)

        try:
            view = journal.view(round, repeats=seeded)
            again = rule_cohort(rule, view, written).tolist()
        except DpcohortError as error:
            count.problems.append((name, f"round {round}: {error}"))
            continue
        if again != cohort:
            words = f"round {round} has another cohort than the rule comes to from the reports."
            count.problems.append((name, words))


def _cannot_be_asked(plan: Plan) -> str:
    if plan.has_raw_reports:
        return "raw reports are not written down, so the choices could not be made again."
    assert plan.adaptive is not None
    if plan.adaptive.rule.watches_updates:
        return (
            f"the rule {plan.selection.rule} looks at updates, so its choices were not made again."
        )
    if isinstance(plan.adaptive.rule, RecordedRule):
        return (
            f"the rule {plan.selection.rule} is not of this package; its choices were not repeated."
        )
    return ""


Problem = tuple[str, str]


def file_problems(
    folder: RunFolder, settings: dict[str, Any], counted: set[int]
) -> Iterator[Problem]:
    """Every file that is not as it was written, and what is wrong with it.

    Args:
        folder: of the run.
        settings: content of its ``run.json``.
        counted: rounds in its ledger.
    """
    yield from _checkpoint_problems(folder, settings, counted)
    yield from _partition_problems(folder, settings)
    if folder.result.exists():
        yield from _result_problems(folder, settings)
    elif folder.model.exists():
        yield folder.model.name, "a model of a run that is not finished."


def _checkpoint_problems(
    folder: RunFolder, settings: dict[str, Any], counted: set[int]
) -> Iterator[Problem]:
    owner = settings_sha256(settings)
    for path in checkpoint_files(folder.checkpoints):
        try:
            next_round, _ = read_checkpoint(path)
        except DpcohortError as error:
            yield "checkpoints", str(error)
            continue
        try:
            read_checkpoint(path, owner=owner)
        except InputError:
            yield "run.json", f"its settings are not those that {path.name} was made with."
        uncounted = sorted(set(range(next_round)) - counted)
        if uncounted:
            words = f"{path.name} holds round {uncounted[0]}, which is not in the ledger."
            yield "checkpoints", words


def _partition_problems(folder: RunFolder, settings: dict[str, Any]) -> Iterator[Problem]:
    try:
        partition = load_partition(folder.partition)
    except DpcohortError as error:
        yield "partition.npz", str(error)
        return
    begun_with = settings.get("partition")
    if not isinstance(begun_with, dict) or partition.sha256 != begun_with.get("sha256"):
        yield "partition.npz", "it is not the one the run was begun with."


def _result_problems(folder: RunFolder, settings: dict[str, Any]) -> Iterator[Problem]:
    try:
        result = read_json(folder.result)
    except DpcohortError as error:
        yield "result.json", str(error)
        return
    hashes = result.get("sha256")
    written = hashes if isinstance(hashes, dict) else {}
    for name, path in (
        ("model", folder.model),
        ("average", folder.average),
        ("config", folder.config),
    ):
        if name != "model" and name not in written and not path.exists():
            continue
        told, found = str(written.get(name, "nothing")), _sha256(path)
        if found != told:
            yield path.name, f"its SHA-256 is {found[:16]}, written {told[:16]}."
    if str(written.get("settings")) != settings_sha256(settings):
        yield "run.json", "its settings are not those the run was finished with."
    try:
        rounds = read_log(folder.rounds)
    except DpcohortError:
        return  # said elsewhere
    if result.get("test") != _last_test(rounds):
        yield "result.json", "its test results are not those of the last evaluated round."


def _last_test(rounds: Sequence[Mapping[str, Any]]) -> Any:
    """The newest test results: of the average of iterates where there is one."""
    found = (line.get("test_average") or line.get("test") for line in reversed(rounds))
    return next((test for test in found if test is not None), None)


def _sha256(path: Path) -> str:
    if not path.exists():
        return "missing"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
