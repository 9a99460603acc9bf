# SPDX-License-Identifier: Apache-2.0
"""Run folders read for the report: whatever can be read is shown, whatever cannot is said.

A report is most wanted when something went wrong, so nothing here stops at the first broken file.
Only a folder in which no file of a run lies is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.errors import DpcohortError, FileFormatError
from dpcohort.limits import LARGEST_CONFIG, LARGEST_LOG, read_bounded
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord, TestResult
from dpcohort.runs.folder import RunFolder, no_run, read_entry, read_json, read_log
from dpcohort.runs.receipts import source_of
from dpcohort.runs.verification import Verification, verify_run

__all__ = ["Group", "Problem", "ReadRun", "read_groups", "read_run"]

#: So many folders deep runs are looked for: demo/runs/RULE/seed-0.
_DEEPEST = 3

#: The schema of run.json that is known here.
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something the reader of the report must know.

    Attributes:
        kind: ``broken`` (a promise or a file that does not hold), ``missing``, or ``note``.
        where: run, file or client.
        message: what was found, with the numbers.
    """

    kind: Literal["broken", "missing", "note"]
    where: str
    message: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadRun:
    """As much of a run as could be read.

    Attributes:
        path: its folder, as given.
        settings: the content of run.json; empty if it cannot be read.
        plan: None if it cannot be read or was changed.
        history: the rounds that could be read.
        draws: draws counted in the ledger, by position; None without a plan.
        reports: reports counted in the ledger of an adaptive run; else None.
        config: the text of config.toml; empty if there is none.
        environment: versions and device.
        verification: what ``verify`` found; None if it could not be asked.
        problems: everything missing or broken.
    """

    path: str
    settings: Mapping[str, Any]
    plan: Plan | None
    history: tuple[RoundRecord, ...]
    draws: IntArray | None
    reports: IntArray | None
    config: str
    environment: Mapping[str, Any]
    verification: Verification | None
    problems: tuple[Problem, ...]

    @property
    def label(self) -> str:
        """What the run is called."""
        named = self.settings.get("label")
        if isinstance(named, str) and named:
            return named
        return self.plan.selection.rule if self.plan is not None else Path(self.path).name

    @property
    def seed(self) -> int | None:
        """The seed of the run, if it is known."""
        seed = self.settings.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def is_private(self) -> bool | None:
        """Whether batches and noise came from entropy, and no report is raw; None: not known."""
        if self.plan is not None and self.plan.has_raw_reports:
            return False
        if self.settings.get("randomness") is None:
            return None
        return source_of(self.settings) == "private"

    @property
    def test(self) -> TestResult | None:
        """The last test result."""
        found = [line.test_average or line.test for line in self.history]
        known = [result for result in found if result is not None]
        return known[-1] if known else None

    @property
    def data_name(self) -> str | None:
        """The data set it was tested on."""
        data = self.settings.get("data")
        return str(data.get("name")) if isinstance(data, Mapping) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        name: what they are called.
        runs: at least one.
    """

    name: str
    runs: tuple[ReadRun, ...]


def read_groups(paths: Sequence[str | Path], *, method: str = "pld") -> list[Group]:
    """Run folders, or folders of seeds, as groups of runs with one label each.

    Args:
        paths: where.
        method: the accountant of the verification, as in ``certify_epsilon``.

    Raises:
        DataMissingError: one of them holds no run at all.
        InputError: one of them is a file.

    Example:
        >>> read_groups(["no-such-run"])
        Traceback (most recent call last):
        ...
        dpcohort.errors.DataMissingError: there is no run at no-such-run. ...
    """
    found: dict[str, list[ReadRun]] = {}
    folders = [(source, folder) for source in paths for folder in _folders(Path(source))]
    for source, folder in folders:
        run = read_run(folder, method=method)
        name = run.label
        if run.seed in [other.seed for other in found.get(name, [])]:
            name = f"{name} ({source})"
        found.setdefault(name, []).append(run)
    return [Group(name=name, runs=tuple(runs)) for name, runs in found.items()]


def _folders(path: Path) -> list[Path]:
    """The run folder itself, or those in it."""
    inside = [path] if _has_part_of_a_run(path) else _below(path, _DEEPEST)
    if not inside:
        raise no_run(path)
    return inside


def _below(path: Path, depth: int) -> list[Path]:
    """Run folders in a folder: its seeds, or groups of seeds, as ``compare`` and ``demo`` leave."""
    found = []
    for place in sorted(p for p in path.glob("[!.]*") if p.is_dir()):
        if _has_part_of_a_run(place):
            found.append(place)
        elif depth > 1:
            found.extend(_below(place, depth - 1))
    return found


def _has_part_of_a_run(path: Path) -> bool:
    folder = RunFolder(path)
    return folder.is_run or (folder.plan.is_file() and folder.ledger.is_file())


def read_run(path: str | Path, *, method: str = "pld") -> ReadRun:
    """Read one run folder as far as it can be read, and verify it.

    Args:
        path: the folder.
        method: the accountant of the verification.
    """
    folder, problems = RunFolder(Path(path)), _Problems(str(path))
    settings = _settings(folder, problems)
    plan: Plan | None = None
    try:
        plan = Plan.load(folder.plan)
    except DpcohortError as error:
        problems.add("broken" if folder.plan.exists() else "missing", "plan.json", str(error))
    counted = None if plan is None else _counted(folder, plan, problems)
    run = ReadRun(
        path=str(path),
        settings=settings,
        plan=plan,
        history=_history(folder, problems),
        draws=None if counted is None else counted[0],
        reports=counted[1] if counted and plan and plan.adaptive else None,
        config=_text(folder.config),
        environment=_optional_json(folder.environment, problems),
        verification=_verified(folder, plan, problems, method),
        problems=(),
    )
    if not run.history:
        problems.add("missing", "rounds.jsonl", "no round is recorded, so there is no curve.")
    elif plan is not None and len(run.history) < plan.training.rounds:
        problems.add(
            "missing",
            "rounds.jsonl",
            f"{len(run.history)} of {plan.training.rounds} rounds are done; the rest is not shown.",
        )
    if run.history and run.test is None:
        problems.add("missing", "rounds.jsonl", "the model was never evaluated on the test set.")
    return replace(run, problems=tuple(problems.found))


class _Problems:
    """Problems of one run, each said once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Problem] = []

    def add(self, kind: Literal["broken", "missing", "note"], where: str, message: str) -> None:
        # The folder is named already; a message need not name it again.
        message = message.replace(f"{self.path}/", "")
        problem = Problem(kind=kind, where=f"{self.path}: {where}", message=message)
        if not any(known.message == message for known in self.found):
            self.found.append(problem)


def _settings(folder: RunFolder, problems: _Problems) -> dict[str, Any]:
    if not folder.is_run:
        problems.add(
            "missing", "run.json", "it is not there, so seed, model and label are unknown."
        )
        return {}
    try:
        settings = read_json(folder.settings)
    except DpcohortError as error:
        problems.add("broken", "run.json", str(error))
        return {}
    if settings.get("schema") != _SCHEMA:
        problems.add(
            "broken",
            "run.json",
            f"written in schema {settings.get('schema')!r}; this dpcohort reads schema {_SCHEMA}. "
            "What is known of it is shown; upgrade dpcohort to see the rest.",
        )
    return settings


def _history(folder: RunFolder, problems: _Problems) -> tuple[RoundRecord, ...]:
    """The rounds that can be read; a line that cannot be costs only itself."""
    try:
        lines = read_bounded(folder.rounds, LARGEST_LOG).split(b"\n")
    except FileFormatError as error:
        problems.add("broken", "rounds.jsonl", str(error))
        return ()
    except OSError:
        return ()
    history = []
    # What follows the last line's end was cut short by a crash, or is nothing.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found = RoundRecord.from_dict(read_entry(folder.rounds, number, line))
            history.append(_with_numbers(found, problems))
        except FileFormatError as error:
            problems.add("broken", "rounds.jsonl", str(error))
        except DpcohortError as error:
            problems.add("broken", "rounds.jsonl", f"line {number}: {error}")
    return tuple(history)


def _with_numbers(line: RoundRecord, problems: _Problems) -> RoundRecord:
    """The line without test results that are no numbers: nothing can be drawn of those."""
    kept = {name: getattr(line, name) for name in ("test", "test_average")}
    lost = [name for name, found in kept.items() if found and not math.isfinite(found.accuracy)]
    if not lost:
        return line
    told = f"round {line.round}: its test accuracy is not a number, so it is not shown."
    problems.add("broken", "rounds.jsonl", told)
    kept |= dict.fromkeys(lost)
    return replace(line, test=kept["test"], test_average=kept["test_average"])


def _counted(
    folder: RunFolder, plan: Plan, problems: _Problems
) -> tuple[IntArray, IntArray] | None:
    """Draws and reports as the ledger counts them; ``verify`` says whether they may be."""
    draws, reports = (np.zeros(len(plan.population), dtype=np.int64) for _ in range(2))
    positions = {client: k for k, client in enumerate(plan.population.ids)}
    try:
        entries = read_log(folder.ledger)
    except DpcohortError as error:
        problems.add("broken", "ledger.jsonl", str(error))
        return None
    for entry in entries:
        # Planned cohorts are counts by client; adaptive ones, and reports, are lists of clients.
        for key, count in (("draws", draws), ("cohort", draws), ("reports", reports)):
            for client, times in _times(entry.get(key)):
                if client in positions and isinstance(times, int) and times > 0:
                    count[positions[client]] += times
    return draws, reports


def _times(counted: object) -> list[tuple[str, object]]:
    """Clients of an entry with how often each is in it."""
    if isinstance(counted, dict):
        return list(counted.items())
    if isinstance(counted, list):
        return [(client, 1) for client in counted if isinstance(client, str)]
    return []


def _verified(
    folder: RunFolder, plan: Plan | None, problems: _Problems, method: str
) -> Verification | None:
    if not folder.is_run or plan is None:
        problems.add(
            "broken", "verification", "the promises could not be verified: see what is missing."
        )
        return None
    try:
        found = verify_run(folder.path, method=method)
    except DpcohortError as error:
        problems.add("broken", "verification", str(error))
        return None
    for finding in found.findings:
        problems.add(
            "note" if finding.kind == "note" else "broken", finding.subject, finding.message
        )
    return found


def _optional_json(path: Path, problems: _Problems) -> dict[str, Any]:
    try:
        return read_json(path)
    except DpcohortError as error:
        problems.add("note", path.name, str(error))
        return {}


def _text(path: Path) -> str:
    try:
        return read_bounded(path, LARGEST_CONFIG).decode("utf-8", errors="replace")
    except (OSError, FileFormatError):
        return ""
