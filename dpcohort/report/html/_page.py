# SPDX-License-Identifier: Apache-2.0
r"""The page: template, style, scripts and data in one file that needs no network.

Everything that comes from a run (client names above all) is text: jinja2 escapes it in the
markup, and in the data block every character that could end a script is written as ``\uXXXX``.
Characters that hide or turn the direction of text are shown as escapes in both.
A content security policy allows exactly the scripts below, by their hashes, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpcohort._validate import choice
from dpcohort._version import __version__
from dpcohort.accounting import Charge, Contract
from dpcohort.accounting._unit import unit_of
from dpcohort.atomic_file import write_text
from dpcohort.errors import DpcohortError, InputError
from dpcohort.explain import Scenario, noise_gains
from dpcohort.metrics import METRICS
from dpcohort.plan import Plan
from dpcohort.plugins import RULES
from dpcohort.report._sections import NEEDS, Section, added_sections, fill_template, shown
from dpcohort.report.html._client_points import (
    MOST_POINTS,
    ClientPoint,
    client_points,
    grouped_points,
)
from dpcohort.report.html._sources import (
    Curve,
    Group,
    Headline,
    Notice,
    ReadRun,
    accuracy_curve,
    baseline_of,
    class_accuracy,
    compared,
    group_check,
    headline_of,
    read_groups,
    read_worth,
)
from dpcohort.runs import (
    NOT_PRIVATE,
    who_was_heard,
)
from dpcohort.runs._folder import RECEIPTS
from dpcohort.runs._later_charges import later_charges
from dpcohort.runs._paid_evaluation import in_words
from dpcohort.runs._receipts import read_receipts
from dpcohort.runs._success import judged_words
from dpcohort.text_files import finite_json

#: In the order in which the page runs them; those of added sections come before the last.
_SCRIPTS = ("frame.js", "charts.js", "page.js")


def write_report(
    sources: Sequence[str | Path],
    path: str | Path,
    *,
    method: str = "pld",
    worth: str | Path | None = None,
) -> Report:
    """Read runs or a result and write the report about them, whole or not at all.

    Args:
        sources: run folders, folders of seeds, or one result (.json) of ``dpcohort reproduce``.
        path: where the page goes.
        method: the accountant that verifies the promises: ``pld``, ``auto`` or ``dp-accounting``.
        worth: what ``dpcohort worth`` saved about the same clients and settings.

    Raises:
        DataMissingError: a run is not there.
        InputError: a source is neither, or the page cannot be written there.
    """
    if not Path(path).parent.is_dir():  # said before the work, not after it
        raise InputError.because(
            f"{path} cannot be written: there is no folder {Path(path).parent}. Make it first."
        )
    if not sources:
        raise InputError("sources", given=[], allowed="at least one run folder or result")
    choice("method", method, ["pld", "auto", "dp-accounting"])
    results = [source for source in sources if Path(source).suffix.lower() == ".json"]
    if results and worth is not None:
        raise InputError.because(f"--worth goes with a run; {results[0]} is a result.")
    if results and len(sources) > 1:
        raise InputError.because(
            f"{results[0]} is a file: give one result of dpcohort reproduce, or run folders only."
        )
    if results:
        report = _report_of_result(results[0])
    else:
        groups = read_groups(sources, method=method)
        report = report_of_runs(groups, method=method, worth=worth)
    write_text(path, render(report))
    return report


def _report_of_result(path: str | Path) -> Report:
    """The report about a file, by the installed distribution that reads such results."""
    entries = metadata.entry_points(group="dpcohort.results")
    if not entries:
        raise InputError.because(
            f"{path} is a file, and a report is about run folders. A result of dpcohort reproduce "
            "is shown with dpcohort-lab: pip install dpcohort-lab"
        )
    report: Report = min(entries, key=lambda entry: entry.name).load()(path)
    return report


def render(report: Report) -> str:
    """The whole page as text."""
    added = [script for section in report.sections for script in section.scripts]
    *first, last = map(page_asset, _SCRIPTS)
    scripts = [_plotly(), *first, *added, last]
    page = fill_template(
        page_asset("page.html.j2"),
        report=report,
        version=__version__,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=page_asset("style.css"),
        scripts=scripts,
        data=data_block(report.chart_data()),
        policy=_policy(scripts),
    )
    return page.lstrip()


def data_block(values: object) -> str:
    r"""Values as JSON that is inert inside a script element, whatever the names in it say.

    Example:
        >>> data_block({"name": "</script><b>"})
        '{"name":"\\u003c/script\\u003e\\u003cb\\u003e"}'
    """
    text = json.dumps(_all_shown(finite_json(values)), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _all_shown(value: Any) -> Any:
    """The same for every text in plain values; keys too, so that both sides of a lookup agree."""
    if isinstance(value, dict):
        return {shown(key): _all_shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_all_shown(item) for item in value]
    return shown(value)


def _policy(scripts: Sequence[str]) -> str:
    """No network, no foreign script: only these scripts, by their hashes."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


@cache
def page_asset(name: str) -> str:
    """A file of the assets."""
    text = files("dpcohort.report.html").joinpath("assets", name).read_text(encoding="utf-8")
    # Browsers hash what they read, and they read CRLF as LF.
    return text.replace("\r\n", "\n")


@cache
def _plotly() -> str:
    try:
        path = files("plotly").joinpath("package_data", "plotly.min.js")
    except ImportError:
        raise InputError.because(NEEDS) from None
    return path.read_text(encoding="utf-8").replace("\r\n", "\n")


#: With more clients the selection is not solved again for each of them: dpcohort worth does that.
_MOST_GAINS = 200

#: Rows of the privacy table above MOST_POINTS clients: those that spent the largest share.
_TIGHTEST = 100


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything the page shows.

    Attributes:
        kind: ``run``, ``comparison``, or what an installed distribution reports about.
        title: of the page.
        headline: the first sentence.
        stamp: NOT PRIVATE and why; empty for a private run.
        problems: what is broken or missing.
        warnings: what looks wrong with the models.
        scores: metrics of the model spoken about and of the best constant: name, both as shown.
        cards: a few numbers with their names.
        curves: accuracy over the rounds.
        comparisons: sentences about pairs of groups.
        classes: accuracy by class, for each group.
        shown: which run the parts about clients show.
        points: its clients, or groups of them.
        rows: clients of the privacy table.
        receipts: the receipt of each client of the table, as the run wrote it, in words.
        grouped: the points are groups.
        adaptive: cohorts were chosen during the training, so shares of draws stand where plans
            have probabilities.
        unit: what each promise covers, in words.
        distributed: on whom clients count where noise is distributed, in words; empty elsewhere.
        weighted: in some of the runs draws have weights, because noise is distributed.
        heard: participation by budget, for each group.
        facts: settings by section.
        rerun: commands.
        config: the configuration, to save and run again.
        sections: what installed distributions add.
        worth: clients by what a larger budget takes off the noise, and what is predicted of it.
        scored: which model was tested, in words; empty if the runs differ in it.
    """

    kind: str
    title: str
    headline: Headline
    stamp: str
    problems: tuple[Notice, ...]
    warnings: tuple[str, ...] = ()
    scores: tuple[tuple[str, str, str], ...] = ()
    cards: tuple[tuple[str, str, str], ...] = ()
    curves: tuple[Curve, ...] = ()
    comparisons: tuple[str, ...] = ()
    classes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    shown: str = ""
    points: tuple[ClientPoint, ...] = ()
    rows: tuple[ClientPoint, ...] = ()
    receipts: dict[str, str] = field(default_factory=dict)
    grouped: bool = False
    adaptive: bool = False
    unit: str = ""
    distributed: str = ""
    weighted: bool = False
    heard: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    rerun: tuple[str, ...] = ()
    config: str = ""
    sections: tuple[Section, ...] = ()
    worth: dict[str, Any] = field(default_factory=dict)
    scored: str = ""

    def chart_data(self) -> dict[str, Any]:
        """What the charts and the added sections read, in plain values."""
        same = ("kind", "grouped", "adaptive", "receipts", "classes", "heard")
        return {
            **{name: getattr(self, name) for name in same},
            "sections": {section.name: section.data for section in self.sections},
            "distributed": bool(self.distributed),
            "curves": list(self.curves),
            "points": [point.to_dict() for point in self.points],
            "worth": self.worth.get("curves", []),
        }


def report_of_runs(
    groups: Sequence[Group],
    *,
    method: str = "pld",
    worth: str | Path | None = None,
) -> Report:
    """The report about one run, seeds of one, or several groups of runs.

    Args:
        groups: at least one.
        method: the accountant of the privacy table.
        worth: what ``dpcohort worth`` saved about the clients that are shown.
    """
    first = baseline_of(groups)
    groups = [groups[first], *groups[:first], *groups[first + 1 :]]
    curves = tuple(accuracy_curve(group) for group in groups)
    # The group spoken about: the most accurate one that is not the baseline.
    others = range(1, len(groups)) or range(1)

    def last(k: int) -> float:
        if not curves[k]["mean"]:
            return -math.inf
        better = METRICS[curves[k]["metric"]].higher_is_better
        return float(curves[k]["mean"][-1] * (1 if better else -1))

    best = max(others, key=last)
    run = next((run for run in groups[best].runs if run.plan is not None), groups[best].runs[0])
    everyone = _clients(run, method)
    grouped = len(everyone) > MOST_POINTS
    # Broken promises first: nobody should have to look for them.
    rows = sorted(everyone, key=lambda point: point.holds)
    if grouped:
        rows = sorted(everyone, key=lambda p: 1.0 if p.share is None else -p.share)[:_TIGHTEST]
    runs = [run for group in groups for run in group.runs]
    return Report(
        kind="run" if len(groups) == 1 else "comparison",
        title=_title([group.name for group in groups], best),
        headline=headline_of(groups, curves, best),
        stamp="" if all(r.is_private is True for r in runs) else NOT_PRIVATE,
        problems=_problems(runs),
        warnings=_warnings(groups),
        scores=_scores(run),
        cards=_cards(groups[best], curves[best], everyone),
        curves=curves,
        comparisons=_comparisons(groups[0], groups[1:]),
        classes={group.name: class_accuracy(group) for group in groups},
        shown=_shown_clients(groups[best], run, len(groups)),
        points=tuple(grouped_points(everyone) if grouped else everyone),
        rows=tuple(rows),
        receipts=_receipts(run, rows),
        grouped=grouped,
        adaptive=run.plan is not None and bool(run.plan.participation.deciding),
        unit=_unit_in_words(run),
        distributed=_distributed_words(run.plan),
        weighted=any(r.plan is not None and r.plan.noise.only_sums for r in runs),
        heard={group.name: heard for group in groups if (heard := _heard(group))},
        facts=facts_of(run),
        rerun=rerun_commands(groups),
        config=run.config,
        sections=added_sections(run.plan, Path(run.path)),
        worth=_worth(run, worth),
        scored=runs[0].scored if len({run.scored for run in runs}) == 1 else "",
    )


def _clients(run: ReadRun, method: str) -> list[ClientPoint]:
    if run.plan is None or run.draws is None:
        return []
    later: tuple[Charge, ...] = ()
    with suppress(DpcohortError):  # that they cannot be read is among the problems already
        later = later_charges(Path(run.path), run.plan)
    reports = 0 * run.draws if run.reports is None else run.reports
    return client_points(run.plan, run.draws, reports, later=later, method=method)


def _title(names: Sequence[str], best: int) -> str:
    others = [name for k, name in enumerate(names) if k != best]
    if not others:
        return names[best]
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return f"{names[best]} against {', '.join(others[:2])}{more}"


def _shown_clients(group: Group, run: ReadRun, groups: int) -> str:
    if groups == 1 and len(group.runs) == 1:
        return ""
    seed = "" if run.seed is None or len(group.runs) == 1 else f", seed {run.seed}"
    return f"{group.name}{seed}"


def _problems(runs: Sequence[ReadRun]) -> tuple[Notice, ...]:
    order = {"broken": 0, "missing": 1, "note": 2}
    found = [problem for run in runs for problem in run.problems]
    return tuple(sorted(found, key=lambda problem: order[problem.kind]))


def _warnings(groups: Sequence[Group]) -> tuple[str, ...]:
    """What the results warn of, each once; runs of older versions by their check alone."""
    found = []
    for group in groups:
        name = f"{group.name}: " if len(groups) > 1 else ""
        check, judged = group_check(group), [run.judged for run in group.runs]
        words = judged_words(judged)
        if check is not None and not check.is_better and not any(judged):
            words = [f"{check.sentence}."]
        found += [f"{name}{one}" for one in words]
    return tuple(dict.fromkeys(found))


def _scores(run: ReadRun) -> tuple[tuple[str, str, str], ...]:
    """Single numbers among the metrics, beside those of the best constant."""
    ours, theirs = run.judged.get("metrics"), run.judged.get("trivial")
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return ()
    shares = ("accuracy", "balanced_accuracy")

    def text(name: str, value: object) -> str:
        if not isinstance(value, int | float):
            return "–"
        return f"{100 * value:.1f} %" if name in shares else f"{value:.3g}"

    return tuple(
        (name.replace("_", " "), text(name, value), text(name, theirs.get(name)))
        for name, value in ours.items()
        if value is None or isinstance(value, int | float)
    )


def _cards(
    group: Group, curve: Curve, points: list[ClientPoint]
) -> tuple[tuple[str, str, str], ...]:
    cards = []
    if curve["mean"]:
        low, high = curve["low"][-1], curve["high"][-1]
        metric, check = METRICS[curve["metric"]], group_check(group)
        ends = "one seed"
        if low is not None and high is not None:
            ends = f"95 % CI {metric.shown(low)} to {metric.shown(high)}"
        scored = f", {group.runs[0].scored}" if group.runs[0].scored else ""
        shown = metric.text(curve["mean"][-1] / metric.scale)
        cards.append((f"Test {metric.words}", shown, f"{group.name}, {ends}{scored}"))
        if check is not None:
            if auc := check.auc_in_words:
                cards.append(("Test AUC", auc.strip(" ()").removeprefix("AUC "), "a class is rare"))
            cards.append(("Best constant", metric.text(check.trivial), check.says))
    plan = group.runs[0].plan
    if plan is not None:
        strict = min((p.epsilon for p in points if p.epsilon is not None), default=None)
        loose = max((p.epsilon for p in points if p.epsilon is not None), default=None)
        budgets = "" if strict is None else f"ε {strict:.3g} to {loose:.3g}"
        drawn = sum(p.draws > 0 for p in points) if points else int(plan.drawn.sum())
        clients, training = f"{len(plan.population):,}", plan.training
        cards += [
            ("Clients", clients, budgets),
            ("Rounds", f"{training.rounds:,}", f"{training.cohort_size} draws in each"),
            ("Taking part", f"{drawn:,}", f"of {clients} clients"),
            ("Noise / clip", f"{plan.noise_to_clip:.3g}", "norm of the noise on a round's mean"),
        ]
    shares = [p.share for p in points if p.share is not None]
    if shares:
        most = f"{100 * max(shares):.2f} %" if math.isfinite(max(shares)) else "unbounded"
        cards.append(("Most of a budget spent", most, "by any client"))
    if plan is not None:
        alone = max((p.alone for p in points if p.alone is not None), default=0.0)
        cards += plan.noise.cards(plan.training.cohort_size, alone)
    return tuple(cards)


def _comparisons(baseline: Group, others: Sequence[Group]) -> tuple[str, ...]:
    found = {group.name: compared(group, baseline) for group in others}
    return tuple(
        f"{name} and {baseline.name} share no seed on the same data, so they are not compared."
        if comparison is None
        else comparison.sentence
        for name, comparison in found.items()
    )


def _heard(group: Group) -> list[dict[str, Any]]:
    run = group.runs[0]
    if run.plan is None or run.draws is None:
        return []
    groups = min(10, max(1, int((~run.plan.population.public).sum())))
    return [asdict(heard) for heard in who_was_heard(run.plan, run.draws, groups=groups)]


def _receipts(run: ReadRun, rows: Sequence[ClientPoint]) -> dict[str, str]:
    """The receipts that the run wrote; what is wrong with them is among the problems already."""
    wanted = {row.name for row in rows}
    try:
        stored = read_receipts(Path(run.path) / RECEIPTS)
    except DpcohortError:
        return {}
    return {receipt.client: receipt.text() for _, receipt in stored if receipt.client in wanted}


def _unit_in_words(run: ReadRun) -> str:
    whole = run.settings.get("drop_in") == "client"
    contract = Contract() if run.plan is None else run.plan.contract
    return (unit_of("client") if whole else contract.unit).of("a client")


def _distributed_words(plan: Plan | None) -> str:
    if plan is None:
        return ""
    return plan.noise.statement(plan.contract, plan.training.cohort_size)


def _worth(run: ReadRun, path: str | Path | None) -> dict[str, Any]:
    """Who should raise epsilon first: exact in noise, and predicted where somebody predicted it."""
    plan = run.plan
    known = plan is not None and plan.rule in RULES["selection"]
    if plan is None or plan.past.no_explorer or not known:
        if path is not None:
            raise InputError.because(
                f"{path} is about a selection that is solved before the training; this run has "
                "none, or its rule is not installed here."
            )
        return {}
    if path is not None:
        return read_worth(path, plan)
    if len(plan.population) > _MOST_GAINS:
        return {}
    return {"gains": [asdict(gain) for gain in noise_gains(Scenario.of(plan))]}


def facts_of(run: ReadRun) -> dict[str, dict[str, str]]:
    """Settings by section: what is known of them, in words."""
    sections: dict[str, dict[str, str]] = {}
    plan = run.plan
    if plan is not None:
        sections["Training"] = flat(asdict(plan.training))
        said = {**plan.contract.to_dict(), "unit": _unit_in_words(run), "plan": plan.sha256}
        sections["Privacy"] = flat(said)
        sections["Privacy"] |= plan.noise.facts(plan.contract, plan.training.cohort_size)
        sections["Selection"] = flat(plan.participation.facts(plan.seed))
    if isinstance(paid := run.judged.get("evaluation"), Mapping) and run.fits_together:
        sections["Evaluation, paid for"] = {
            **in_words(paid.get("in_all", {})),
            "test records": f"{paid.get('records')}",
            "charge": _short(f"{paid.get('charge')}"),
        }
    kept = {k: v for k, v in run.settings.items() if k not in ("format", "schema", "plan")}
    if kept:
        sections["Run"] = flat(kept)
    if (found := run.verification) is not None:
        signed = {"seal of all files": found.seal, "signed by the key": found.signed_by or "nobody"}
        sections["Whose word is taken"] = {**found.whose_word, **flat(signed)}
    if run.environment:
        sections["Environment"] = flat({**run.environment, "report written by": __version__})
    return {name: rows for name, rows in sections.items() if rows}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as rows of words.

    Example:
        >>> flat({"model": {"name": "mlp", "options": {}}, "clip": 1.0, "cap": None})
        {'model name': 'mlp', 'clip': '1'}
    """
    rows: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{key} ")
        elif isinstance(value, float):
            rows[name] = f"{value:.6g}"
        elif isinstance(value, list | tuple):
            rows[name] = ", ".join(str(item) for item in value)
        elif value is not None:
            rows[name] = _short(str(value)) if name != "plan" else str(value)
    return rows


def _short(text: str) -> str:
    """A hash by its first digits."""
    return f"{text[:16]}…" if re.fullmatch("[0-9a-f]{64}", text) else text


def rerun_commands(groups: Sequence[Group]) -> tuple[str, ...]:
    """Commands that make the runs again from their own configuration, and check them.

    They work from any folder: paths are whole, and where the user's own modules were found in the
    folder the run was begun in, that is gone to first.
    """
    commands = []
    for group in groups:
        for run in group.runs:
            folder = Path(run.path).resolve()
            path = shlex.quote(str(folder))
            if run.config and run.is_private:
                commands.append(
                    "# The next line trains anew on the same records: every budget is spent again."
                )
            if run.config:
                began = folder / str(run.environment.get("began_in") or ".")
                if "began_in" in run.environment and began.is_dir():
                    commands.append(f"cd {shlex.quote(str(began.resolve()))}")
                config = shlex.quote(str(folder / "config.toml"))
                commands.append(f"dpcohort train {config} --out AGAIN")
            commands.append(f"dpcohort verify {path}")
            if run.seed is not None and len(group.runs) > 1:
                commands.append(f"# and the other seeds of {group.name} alike")
                break
    return tuple(dict.fromkeys(commands))
