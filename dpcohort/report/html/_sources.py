# SPDX-License-Identifier: Apache-2.0
"""Run folders read for the report: whatever can be read is shown, whatever cannot is said.

A report is most wanted when something went wrong, so nothing here stops at the first broken file.
Only a folder in which no file of a run lies is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.clients import Population
from dpcohort.errors import DpcohortError, FileFormatError, InputError
from dpcohort.limits import LARGEST_CONFIG, LARGEST_LOG, LARGEST_RESULT, read_bounded
from dpcohort.metrics import METRICS, Check, Metric, check_together, main_metric
from dpcohort.plain_text import counted, one_line
from dpcohort.plan import Plan
from dpcohort.planning._reports import Origin
from dpcohort.round_record import RoundRecord, TestResult
from dpcohort.runs import Comparison, Verification, mean_interval, verify_run
from dpcohort.runs._folder import (
    CONFIG,
    ENVIRONMENT,
    LEDGER,
    PLAN,
    ROUNDS,
    SETTINGS,
    is_run,
    no_run,
    read_entry,
    read_json,
    read_log,
)
from dpcohort.runs._paid_evaluation import in_words
from dpcohort.runs._provenance import source_of
from dpcohort.runs._run import SCORED, judged_in, result_in
from dpcohort.runs._success import check_of, task_of
from dpcohort.text_files import parse_json, read_utf8

Kind = Literal["broken", "missing", "note"]

#: So many folders deep runs are looked for: demo/runs/RULE/seed-0.
_DEEPEST = 3

#: The schema of run.json that is known here.
_SCHEMA = 1


@dataclass(frozen=True)
class Notice:
    """Something the reader of the report must know.

    Attributes:
        kind: ``broken`` (a promise or a file that does not hold), ``missing``, or ``note``.
        where: run, file or client.
        message: what was found, with the numbers.
    """

    kind: Kind
    where: str
    message: str


#: Adds a notice of this kind about a file or a client of the run that is read.
_Tell = Callable[[Kind, str, str], None]


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
        judged: what result.json says of the model; empty if there is none yet.
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
    problems: tuple[Notice, ...]
    judged: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What the run is called."""
        named = self.settings.get("label")
        if isinstance(named, str) and named:
            return named
        return self.plan.rule if self.plan is not None else Path(self.path).name

    @property
    def seed(self) -> int | None:
        """The seed of the run, if it is known."""
        seed = self.settings.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def is_private(self) -> bool | None:
        """Whether batches and noise came from entropy, and no report is raw; None: not known."""
        of_run = source_of(self.settings)
        source: Origin = of_run if self.plan is None else self.plan.reports.source(of_run)
        if self.settings.get("randomness") is None and source != "raw reports":
            return None
        return source == "private"

    @property
    def fits_together(self) -> bool:
        """Whether it could be verified, and no file speaks against another or against the seal."""
        found = self.verification
        return found is not None and all(one.kind != "mismatch" for one in found.findings)

    @property
    def test(self) -> TestResult | None:
        """The last test result."""
        return next((line.scored for line in reversed(self.history) if line.scored), None)

    @property
    def metric(self) -> Metric:
        """What it is judged by."""
        return main_metric(task_of(self.settings))

    @property
    def check(self) -> Check | None:
        """The model beside the best constant; None where nothing is told of test records."""
        return check_of(self.judged, self.test)

    @property
    def scored(self) -> str:
        """Which model the last test result is of, in words."""
        last = next((line for line in reversed(self.history) if line.scored), None)
        return "" if last is None else SCORED["average" if last.test_average else "last"]

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
    folders: list[tuple[str | Path, Path]] = []
    for source in paths:
        inside = _run_folders(Path(source), _DEEPEST)
        if not inside:
            raise no_run(Path(source))
        folders.extend((source, folder) for folder in inside)
    for source, folder in folders:
        run = read_run(folder, method=method)
        name = run.label
        if run.seed in [other.seed for other in found.get(name, [])]:
            name = f"{name} ({source})"
        found.setdefault(name, []).append(run)
    return [Group(name=name, runs=tuple(runs)) for name, runs in found.items()]


def _run_folders(path: Path, depth: int) -> list[Path]:
    """The run folder itself, or those in it: seeds, or groups of seeds, as ``compare`` leaves."""
    if is_run(path) or ((path / PLAN).is_file() and (path / LEDGER).is_file()):
        return [path]
    inside = sorted(place for place in path.glob("[!.]*") if place.is_dir()) if depth else []
    return [found for place in inside for found in _run_folders(place, depth - 1)]


def read_run(path: str | Path, *, method: str = "pld") -> ReadRun:
    """Read one run folder as far as it can be read, and verify it.

    Args:
        path: the folder.
        method: the accountant of the verification.
    """
    folder = Path(path)
    problems: list[Notice] = []

    def tell(kind: Kind, where: str, message: str) -> None:
        # The folder is named already; a message need not name it again. Each is said once.
        message = message.replace(f"{path}/", "")
        if message not in [known.message for known in problems]:
            problems.append(Notice(kind, f"{path}: {where}", message))

    settings = _settings(folder, tell)
    plan: Plan | None = None
    try:
        plan = Plan.load(folder / PLAN)
    except DpcohortError as error:
        tell("broken" if (folder / PLAN).exists() else "missing", "plan.json", str(error))
    counted = None if plan is None else _counted(folder, plan, tell)
    run = ReadRun(
        path=str(path),
        settings=settings,
        plan=plan,
        history=_history(folder, tell),
        draws=None if counted is None else counted[0],
        reports=counted[1] if counted else None,
        config=_text(folder / CONFIG),
        environment=_json(folder / ENVIRONMENT, "note", tell) or {},
        verification=_verified(folder, plan, tell, method),
        problems=(),
        judged=judged_in(result_in(folder)),
    )
    if not run.history:
        tell("missing", "rounds.jsonl", "no round is recorded, so there is no curve.")
    elif plan is not None and len(run.history) < plan.training.rounds:
        done = f"{len(run.history)} of {plan.training.rounds} rounds are done"
        tell("missing", "rounds.jsonl", f"{done}; the rest is not shown.")
    is_told = run.judged.get("withheld") or run.judged.get("evaluation")
    if run.history and run.test is None and not is_told:
        tell("missing", "rounds.jsonl", "the model was never evaluated on the test set.")
    return replace(run, problems=tuple(problems))


def _settings(folder: Path, tell: _Tell) -> dict[str, Any]:
    if not is_run(folder):
        tell("missing", "run.json", "it is not there, so seed, model and label are unknown.")
        return {}
    settings = _json(folder / SETTINGS, "broken", tell)
    if settings is not None and settings.get("schema") != _SCHEMA:
        tell(
            "broken",
            "run.json",
            f"written in schema {settings.get('schema')!r}; this dpcohort reads schema {_SCHEMA}. "
            "What is known of it is shown; upgrade dpcohort to see the rest.",
        )
    return settings or {}


def _history(folder: Path, tell: _Tell) -> tuple[RoundRecord, ...]:
    """The rounds that can be read; a line that cannot be costs only itself."""
    try:
        lines = read_bounded(folder / ROUNDS, LARGEST_LOG).split(b"\n")
    except FileFormatError as error:
        tell("broken", "rounds.jsonl", str(error))
        return ()
    except OSError:
        return ()
    history = []
    # What follows the last line's end was cut short by a crash, or is nothing.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found = RoundRecord.from_dict(read_entry(folder / ROUNDS, number, line))
            history.append(_with_numbers(found, tell))
        except FileFormatError as error:
            tell("broken", "rounds.jsonl", str(error))
        except DpcohortError as error:
            tell("broken", "rounds.jsonl", f"line {number}: {error}")
    return tuple(history)


def _with_numbers(line: RoundRecord, tell: _Tell) -> RoundRecord:
    """The line without test results that are no numbers: nothing can be drawn of those."""
    found = {name: getattr(line, name) for name in ("test", "test_average")}
    lost = [name for name, one in found.items() if one and not math.isfinite(one.score)]
    if lost:
        told = f"round {line.round}: its test accuracy is not a number, so it is not shown."
        tell("broken", "rounds.jsonl", told)
    nothing: dict[str, Any] = dict.fromkeys(lost)
    return replace(line, **nothing)


def _counted(folder: Path, plan: Plan, tell: _Tell) -> tuple[IntArray, IntArray] | None:
    """Draws and reports as the ledger counts them; ``verify`` says whether they may be."""
    draws, reports = (np.zeros(len(plan.population), dtype=np.int64) for _ in range(2))
    positions = {client: k for k, client in enumerate(plan.population.ids)}
    try:
        entries = read_log(folder / LEDGER)
    except DpcohortError as error:
        tell("broken", "ledger.jsonl", str(error))
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


def _verified(folder: Path, plan: Plan | None, tell: _Tell, method: str) -> Verification | None:
    if not is_run(folder) or plan is None:
        tell("broken", "verification", "the promises could not be verified: see what is missing.")
        return None
    try:
        found = verify_run(folder, method=method)
    except DpcohortError as error:
        tell("broken", "verification", str(error))
        return None
    for finding in found.findings:
        tell("note" if finding.kind == "note" else "broken", finding.subject, finding.message)
    return found


def _json(path: Path, kind: Kind, tell: _Tell) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except DpcohortError as error:
        tell(kind, path.name, str(error))
        return None


def _text(path: Path) -> str:
    try:
        return read_bounded(path, LARGEST_CONFIG).decode("utf-8", errors="replace")
    except (OSError, FileFormatError):
        return ""


Tone = Literal["good", "plain", "bad"]


@dataclass(frozen=True)
class Headline:
    """The sentence, and how it is to be taken.

    Attributes:
        result: what training gave.
        verdict: whether the promises hold.
        tone: ``good`` if every promise was verified, ``bad`` if one was not, else ``plain``.
        weak: the model is no better than a constant.
        kind: SIMULATION, where noise came from a seed.
    """

    result: str
    verdict: str
    tone: Tone
    weak: bool = False
    kind: str = ""

    @property
    def sentence(self) -> str:
        """All parts as one sentence."""
        return f"{self.kind}{': ' * bool(self.kind)}{self.result}; {self.verdict}."


def headline_of(groups: Sequence[Group], curves: Sequence[Curve], best: int) -> Headline:
    """The headline for a run, seeds of one run, or several groups.

    Args:
        groups: the groups.
        curves: their curves.
        best: the group that is spoken about.
    """
    runs = [run for group in groups for run in group.runs]
    kind = "SIMULATION" if any(run.settings.get("randomness") == "seeded" for run in runs) else ""
    verdict, tone = verdict_of(runs)
    if not all(run.fits_together for run in runs):
        names = " and ".join(group.name for group in groups)
        words = f"{names}: its files do not fit together, so no result is repeated here"
        return Headline(words, verdict, tone)
    baseline = baseline_of(groups)
    if best != baseline:
        comparison = compared(groups[best], groups[baseline])
        if comparison is not None:
            budgets = " at the same budgets"
            if not same_budgets(groups[best], groups[baseline]):
                budgets = " with DIFFERENT budgets, so the difference is not that of the rule alone"
            but = f", but {comparison.caveat}" if comparison.caveat else ""
            trust = _trust_words(groups[best], groups[baseline])
            words = comparison_words(comparison) + budgets + trust + but
            return Headline(words, verdict, tone, weak=bool(but), kind=kind)
    check = group_check(groups[best])
    weak = check is not None and not check.is_better
    return Headline(_alone(groups[best], curves[best]), verdict, tone, weak, kind)


def _trust_words(group: Group, other: Group) -> str:
    """Whose promises count on whom, where two groups differ in that; empty where they do not."""

    def whom(plan: Plan | None) -> str:
        if plan is None or plan.noise.honest == 1:
            return "no other client"
        return f"{plan.noise.honest} honest of {plan.training.cohort_size} members"

    one, two = whom(group.runs[0].plan), whom(other.runs[0].plan)
    if one == two:
        return ""
    names = f"{group.name} counts on {one}, {other.name} on {two}"
    return f", but under DIFFERENT trust: {names}"


def _alone(group: Group, curve: Curve) -> str:
    plan = group.runs[0].plan
    clients = "" if plan is None else f" with {counted(len(plan.population), 'client')}"
    if not curve["mean"]:
        judged = group.runs[0].judged
        why = "no test result yet"
        if judged.get("withheld"):
            why = "nothing is told of test records that are not public"
        if isinstance(paid := judged.get("evaluation"), Mapping):
            first = next(iter(in_words(paid.get("in_all", {})).items()), ("", ""))
            why = f"{' '.join(first)} by the evaluation that clients paid for"
        return f"{group.name}{clients}: {why}"
    check, metric = group_check(group), METRICS[curve["metric"]]
    if check is not None and not check.is_better:
        return f"{group.name}{clients}: {check.sentence}"
    spread = " (one seed)"
    if curve["seeds"] > 1:
        ends = " to ".join(metric.shown(curve[end][-1]) for end in ("low", "high"))
        spread = f" (95 % CI {ends}, {curve['seeds']} seeds)"
    beside = "" if check is None else f", against {metric.text(check.trivial)} of {check.says}"
    return (
        f"{group.name} reaches {metric.text(curve['mean'][-1] / metric.scale)} test {metric.words}"
        f"{spread} after {counted(curve['rounds'][-1], 'round')}{clients}{beside}"
    )


def group_check(group: Group) -> Check | None:
    """The runs of a group beside the best constant."""
    return check_together([check for run in group.runs if (check := run.check) is not None])


def comparison_words(comparison: Comparison) -> str:
    """A comparison as the beginning of a sentence.

    Example:
        >>> from dpcohort.runs._evaluation import Interval
        >>> found = Interval(mean=31.2, low=28.0, high=34.4, count=5)
        >>> comparison_words(Comparison(name="privacy-aware", baseline="unbiased",
        ...                             seeds=(0, 1, 2, 3, 4), difference=found))
        'privacy-aware beats unbiased by 31.2 points (95 % CI 28.0 to 34.4, 5 seeds)'
    """
    found, metric = comparison.difference, METRICS[comparison.metric]
    ahead, by = found.mean >= 0, f"{metric.shown(abs(found.mean))}{metric.unit}"
    if not math.isfinite(found.low):
        word = ("above" if ahead else "below") if metric.is_share else "better than"
        word = word if ahead or metric.is_share else "worse than"
        return (
            f"{comparison.name} is {by} {word} {comparison.baseline} with "
            "one seed, which says nothing about chance,"
        )
    ends = sorted((found.low, found.high)) if ahead else sorted((-found.low, -found.high))
    interval = f"{metric.shown(ends[0])} to {metric.shown(ends[1])}"
    spread = f"(95 % CI {interval}, {found.count} seeds)"
    if not found.excludes(0.0):
        return (
            f"no clear difference between {comparison.name} and {comparison.baseline}: "
            f"{'+' if ahead else '-'}{by} {spread}"
        )
    verb = "beats" if ahead else "falls behind"
    return f"{comparison.name} {verb} {comparison.baseline} by {by} {spread}"


def same_budgets(group: Group, other: Group) -> bool:
    """Whether both had the same clients with the same sizes and budgets, seed by seed."""
    theirs = {run.seed: run.plan for run in other.runs}
    pairs = [(run.plan, theirs[run.seed]) for run in group.runs if run.seed in theirs]
    return all(
        one is not None and two is not None and _same_clients(one.population, two.population)
        for one, two in pairs
    )


def _same_clients(one: Population, two: Population) -> bool:
    pairs = ((getattr(one, name), getattr(two, name)) for name in ("sizes", "epsilon", "delta"))
    return one.ids == two.ids and all(np.array_equal(*pair, equal_nan=True) for pair in pairs)


def verdict_of(runs: Sequence[ReadRun]) -> tuple[str, Tone]:
    """Whether every promise of all runs was verified, in words."""
    verified = [run.verification for run in runs if run.verification is not None]
    broken = sum(one.kind != "note" for found in verified for one in found.findings)
    if broken:
        told = counted(broken, "finding")
        return f"NOT every promise could be confirmed ({told} below)", "bad"
    if len(verified) < len(runs):
        return "the promises could NOT be verified (see below)", "bad"
    if any(problem.kind == "broken" for run in runs for problem in run.problems):
        return "NOT every file could be read as it was written (see below)", "bad"
    if any(run.problems for run in runs):
        return "every promise verified as far as the runs have come", "plain"
    return "every promise verified", "good"


#: Mean test accuracy of a group of runs, in percent, with its interval; or another metric: the
#: ``name`` of the group, ``rounds`` done at each look that all its runs had, ``mean`` over the
#: seeds, ``low`` and ``high`` ends of the 95 % interval (None from one seed), how many ``seeds``,
#: ``private`` if the noise was not drawn from a seed, the ``metric`` by name, and ``words`` for it.
Curve = dict[str, Any]


def accuracy_curve(group: Group) -> Curve:
    """The curve of a group, at the rounds at which all its runs were tested."""
    curves = [
        {line.round + 1: line.scored.score for line in run.history if line.scored}
        for run in group.runs
        if run.test is not None
    ]
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    metric = group.runs[0].metric
    found = [mean_interval([metric.scale * curve[at] for curve in curves]) for at in shared]
    most = 100.0 if metric.is_share else math.inf
    return {
        "name": group.name,
        "rounds": shared,
        "mean": [interval.mean for interval in found],
        "low": [_end(interval.low, most) for interval in found],
        "high": [_end(interval.high, most) for interval in found],
        "seeds": len(curves),
        "private": all(run.is_private is True for run in group.runs),
        "metric": metric.name,
        "words": metric.words,
    }


def _end(value: float, most: float = 100.0) -> float | None:
    return min(max(value, 0.0), most) if math.isfinite(value) else None


def baseline_of(groups: Sequence[Group]) -> int:
    """Which group the others are judged against: the unbiased one, or else the first."""
    plain = [
        k
        for k, group in enumerate(groups)
        if (plan := group.runs[0].plan) is not None and plan.rule == "unbiased"
    ]
    return plain[0] if len(plain) == 1 else 0


def compared(group: Group, baseline: Group) -> Comparison | None:
    """Paired differences over the seeds both have; None where there is nothing to pair."""
    metric = group.runs[0].metric
    if (group.runs[0].data_name, metric) != (baseline.runs[0].data_name, baseline.runs[0].metric):
        return None
    ours = {run.seed: run.test for run in group.runs if run.seed is not None}
    theirs = {run.seed: run.test for run in baseline.runs if run.seed is not None}
    points = {
        seed: metric.gain(mine.score, other.score)
        for seed, mine in ours.items()
        if mine is not None and (other := theirs.get(seed)) is not None
    }
    if not points:
        return None
    seeds = tuple(sorted(points))
    return Comparison(
        name=group.name,
        baseline=baseline.name,
        seeds=seeds,
        difference=mean_interval([points[seed] for seed in seeds]),
        metric=metric.name,
        check=group_check(group),
    )


def class_accuracy(group: Group) -> list[dict[str, Any]]:
    """Accuracy within each class of the test set, over the seeds; in percent."""
    rows = [run.test.class_accuracy for run in group.runs if run.test is not None]
    if not rows or len({len(row) for row in rows}) != 1:
        return []
    columns, task = np.array(rows, dtype=np.float64).T, task_of(group.runs[0].settings)
    found: list[dict[str, Any]] = []
    for number, column in enumerate(columns):
        if np.isfinite(column).all():
            interval = mean_interval((100 * column).tolist())
            low, high = _end(interval.low), _end(interval.high)
            called = task.called(number) if len(task.names) == len(columns) else number
            found.append({"class": called, "mean": interval.mean, "low": low, "high": high})
    return found


def read_worth(path: str | Path, plan: Plan) -> dict[str, Any]:
    """What ``dpcohort worth`` saved, in plain values: gains of clients, and predicted curves.

    Args:
        path: the file.
        plan: of the run it is shown with.

    Raises:
        InputError: it is about other clients, budgets or settings than the plan.
        FileFormatError: it is no such file.
    """
    values = parse_json(read_utf8(path, at_most_bytes=LARGEST_RESULT))
    if not isinstance(values, dict) or values.get("format") != "dpcohort worth":
        raise FileFormatError(path, "not saved by dpcohort worth CONFIG -o FILE.")
    made, planned = values.get("training"), asdict(plan.training)
    if not isinstance(made, Mapping) or dict(made) != planned:
        known = made if isinstance(made, Mapping) else {}
        key = next((key for key, value in planned.items() if known.get(key) != value), "settings")
        raise InputError.because(
            f"{path} is about another training than the run: {key} = {known.get(key)!r} there and "
            f"{planned.get(key)!r} here. Predict it again: dpcohort worth CONFIG -o {path}"
        )
    budgets = dict(zip(plan.population.ids, plan.population.epsilon.tolist(), strict=True))
    gains = []
    for item in _objects(values.get("gains")):
        numbers = {key: _number(item.get(key)) for key in ("epsilon", "probability", "noise")}
        if numbers["epsilon"] is None or budgets.get(str(item.get("client"))) != numbers["epsilon"]:
            raise InputError.because(
                f"{path} is about other clients or budgets than the run: "
                f"{one_line(str(item.get('client')), 60)}. Predict it again: dpcohort worth CONFIG"
            )
        gains.append({"client": str(item["client"]), **numbers, **_ends(item.get("accuracy"))})
    factors = [_number(item.get("factor")) for item in _objects(values.get("factors"))]
    sets, curves = values.get("sets"), []
    for name, points in sets.items() if isinstance(sets, Mapping) else ():
        curve: dict[str, list[float]] = {"mean": [], "low": [], "high": []}
        for ends in map(_ends, _objects(points)):
            for end, column in curve.items():  # one data set of a kind has no interval
                value = ends["mean"] if ends[end] is None else ends[end]
                column.append(100 * min(1.0, max(0.0, value or 0.0)))
        curves.append({"name": str(name), "words": "loss saved", "factors": factors, **curve})
    if None in factors or any(len(curve["mean"]) != len(factors) for curve in curves):
        raise FileFormatError(path, "its curves are not as dpcohort worth writes them.")
    source = str(values.get("source") or "")
    return {"gains": gains, "curves": curves, "source": source}


def _ends(value: Any) -> dict[str, float | None]:
    """Mean, low and high of an interval that was written down."""
    found = value if isinstance(value, Mapping) else {}
    return {end: _number(found.get(end)) for end in ("mean", "low", "high")}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in _list(value) if isinstance(item, Mapping)]
