# SPDX-License-Identifier: Apache-2.0
"""Selection and aggregation rules under one accountant: one row a pair that makes sense."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort.aggregation import Cohort, combine_round
from dpcohort.config import Config
from dpcohort.data import Dataset
from dpcohort.engine import draw_numbers
from dpcohort.errors import FileFormatError, InputError
from dpcohort.metrics import check_together
from dpcohort.plugins import is_named_function, rule_names
from dpcohort.runs import (
    ConfigSource,
    Interval,
    Job,
    Run,
    aggregation_for,
    configured_data,
    configured_job,
    folder_name,
    summarise_seeds,
    train_group,
    train_side_by_side,
    who_was_heard,
)
from dpcohort.text_files import parse_toml
from dpcohort_lab.checks import choice

_CHOICE = re.compile(r"([^,()]+?)\s*(?:\(([^()]*)\))?\s*(?:,|$)")


@dataclass(frozen=True, kw_only=True)
class RuleChoice:
    """A rule with the settings it was asked for with.

    Attributes:
        section: ``selection`` or ``aggregation``, where it stands in a configuration.
        name: of the rule.
        settings: given with it; a configuration's own are used where it names the same rule.
        label: as it was written.
        asked: by name, so that it is refused, not skipped, where it cannot be used.
    """

    section: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    asked: bool = True

    @property
    def changes(self) -> list[str]:
        """The changes to a configuration that ask for this rule."""
        given = {"rule": self.name, **self.settings}
        return [f"{self.section}.{key}={json.dumps(value)}" for key, value in given.items()]


#: A pair that can be trained: its selection, its aggregation, and a job for each seed.
Pair = tuple[str, str, list[Job]]
#: A pair that is not trained: its selection, its aggregation, and why.
Skipped = tuple[str, str, str]


def chosen_rules(section: str, text: str) -> list[RuleChoice]:
    """The rules of a list such as ``unbiased, threshold(threshold=2)``; ``all`` are all there are.

    Raises:
        InputError: one of them does not exist, or the list cannot be read.

    Example:
        >>> [rule.name for rule in chosen_rules("selection", "uniform, threshold(threshold=2)")]
        ['uniform', 'threshold']
        >>> chosen_rules("aggregation", "meen")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: aggregation = 'meen' is not allowed: ... Did you mean 'mean'?
    """
    kinds = ["selection", "adaptive"] if section == "selection" else ["aggregation"]
    known = [name for kind in kinds for name in rule_names(kind)]
    if text.strip() == "all":
        return [RuleChoice(section=section, name=name, label=name, asked=False) for name in known]
    if not text.strip() or _CHOICE.sub("", text).strip():
        raise InputError(
            section, given=text, allowed="rules like mean,trimmed-mean(trim=0.2), or all"
        )
    found = []
    for name, inside in _CHOICE.findall(text):
        if not is_named_function(name.strip()):
            choice(section, name.strip(), [*known, "all"])
        settings = _settings(section, inside)
        label = name.strip() + (f"({inside.strip()})" if settings else "")
        found.append(RuleChoice(section=section, name=name.strip(), settings=settings, label=label))
    return found


def rule_pairs(
    config: Config,
    *,
    selections: Sequence[RuleChoice],
    aggregations: Sequence[RuleChoice],
    seeds: int = 3,
    device: str | None = None,
    data: Dataset | None = None,
) -> tuple[list[Pair], list[Skipped]]:
    """Every pair, planned and checked, and the pairs that cannot be or make no sense.

    Nothing is trained. A rule is planned once for all its pairs.

    Raises:
        InputError: a rule that was asked for by name cannot be used, or no pair is left.
    """
    for rule in (*selections, *aggregations):
        if rule.asked:
            config.with_overrides(rule.changes)
    dataset = configured_data(config) if data is None else data
    pairs: list[Pair] = []
    skipped: list[Skipped] = []
    # Of rules that turn out to be the same, the well-known one is kept.
    known = (config.rule, "unbiased")
    for selection in sorted(selections, key=lambda rule: not rule.asked and rule.name not in known):
        reason = ""
        try:
            planned = config.with_overrides([*selection.changes, "aggregation.rule=mean"])
            jobs = [
                configured_job(planned, data=dataset, shift=i, device=device) for i in range(seeds)
            ]
        except InputError as error:
            if selection.asked:
                raise
            reason = _reason(error)
        else:
            twin = next((name for name, _, own in pairs if _draw_alike(own, jobs)), None)
            if twin is not None and not selection.asked:
                reason = f"with these settings it is {twin}"
        if reason:
            skipped += [(selection.label, other.label, reason) for other in aggregations]
            continue
        for aggregation in aggregations:
            try:
                own = [_with(job, config, selection, aggregation) for job in jobs]
            except InputError as error:
                skipped.append((selection.label, aggregation.label, _reason(error)))
                continue
            pairs.append((selection.label, aggregation.label, own))
    if not pairs:
        why = skipped[0][2] if skipped else "no rules are given"
        raise InputError.because(f"no pair of rules can be trained: {why}")
    return pairs, skipped


def _with(job: Job, config: Config, selection: RuleChoice, aggregation: RuleChoice) -> Job:
    """The same training with another aggregation.

    Raises:
        InputError: the two do not go together.
    """
    asked = config.with_overrides([*selection.changes, *aggregation.changes])
    name, settings = asked.aggregation
    rule = aggregation_for(job.plan, name, settings)
    objection = getattr(rule, "objection", None)
    if (
        not job.plan.participation.deciding
        and objection is not None
        and (words := objection(job.plan))
    ):
        raise InputError.because(str(words))
    label = f"{selection.label}, {aggregation.label}"
    return replace(job, aggregation=rule, label=label, source=ConfigSource.of(asked))


def _draw_alike(some: Sequence[Job], others: Sequence[Job]) -> bool:
    """Whether plans draw the same clients with the same noise, seed by seed."""
    plans = [(one.plan, other.plan) for one, other in zip(some, others, strict=True)]
    return all(
        not (one.participation.deciding or other.participation.deciding)
        and np.array_equal(one.schedule.cohorts, other.schedule.cohorts)
        and np.array_equal(one.noise_multipliers, other.noise_multipliers, equal_nan=True)
        for one, other in plans
    )


def _reason(error: InputError) -> str:
    """What is wrong, without the file and the changes that led to it."""
    words = str(error)
    if isinstance(error, FileFormatError):
        words = words.removeprefix(error.path).partition(": ")[2]
    return re.sub(r"^(selection|aggregation): ", "", " ".join(words.split()))


def _settings(section: str, inside: str) -> dict[str, Any]:
    if not inside.strip():
        return {}
    try:
        # An inline table is just such a list.
        return dict(parse_toml(f"found = {{ {inside} }}")["found"])
    except ValueError:
        raise InputError(
            section, given=inside, allowed="settings like trim=0.2 between the parentheses"
        ) from None


#: Coordinates and rounds that stand for all in the simulation of noise alone.
_COORDINATES, _ROUNDS = 30_000, 10
#: Trainings that a GPU does at once.
_STACK = 48


@dataclass(frozen=True, kw_only=True)
class RuleRow:
    """What one pair of rules gave.

    Attributes:
        selection: the selection rule.
        aggregation: the aggregation rule.
        accuracy: on the public test set, over the seeds; None if a training failed, or where no
            class is predicted.
        noise: norm of the noise that reaches the model in a round, over C (root mean square):
            noise alone, sent through the aggregation.
        certified: largest certified epsilon over promised epsilon among all clients and seeds.
        bias: ``||p - p^u||_1``; None for a rule that has no probabilities.
        heard: share of draws over share of records, by decile of epsilon, the strictest first.
        heard_public: the same for public clients; None if there are none.
        seconds: of one training.
        failed: why a training failed; empty if none did.
        metric: what the pair is judged by.
        score: of that metric, over the seeds; None if a training failed.
        caveat: that the models are no better than a constant; empty where they are.
    """

    selection: str
    aggregation: str
    accuracy: Interval | None
    noise: float
    certified: float
    bias: float | None
    heard: tuple[float, ...]
    heard_public: float | None
    seconds: float
    failed: str = ""
    metric: str = "accuracy"
    score: Interval | None = None
    caveat: str = ""


def plain_table(rows: Sequence[RuleRow], skipped: Sequence[Skipped]) -> dict[str, Any]:
    """All rows, and the pairs that were not trained, as plain values for JSON."""
    names = ("selection", "aggregation", "reason")
    return {
        "rows": [asdict(row) for row in rows],
        "skipped": [dict(zip(names, pair, strict=True)) for pair in skipped],
    }


def csv_table(rows: Sequence[RuleRow]) -> str:
    """One line a row, with its columns' names on top."""
    deciles = max((len(row.heard) for row in rows), default=0)
    head = ["selection", "aggregation", rows[0].metric if rows else "accuracy"]
    head += ["low", "high", "seeds", "noise", "certified", "bias"]
    head += [*(f"heard_{i + 1}" for i in range(deciles)), "heard_public", "seconds", "failed"]
    text = io.StringIO()
    writer = csv.DictWriter(text, head, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = asdict(row) | {f"heard_{i + 1}": share for i, share in enumerate(row.heard)}
        if (found := row.score) is not None:
            values |= {head[2]: found.mean, "seeds": found.count}
            values |= {"low": found.low, "high": found.high}
        writer.writerow(values)
    return text.getvalue()


def compare_rules(
    pairs: Sequence[Pair],
    *,
    out: Path | None = None,
    on_row: Callable[[int, int, RuleRow], None] | None = None,
) -> list[RuleRow]:
    """Train every pair with the same seeds, and tell how they compare.

    On a CPU the seeds of a pair train side by side; on a GPU many pairs do. A pair whose model
    stops being finite has a row that says so.

    Args:
        pairs: from ``rule_pairs``.
        out: keep the runs in folders ``out/PAIR/seed-N``; finished ones are not repeated.
        on_row: told the number of rows done, their number in all and the row.
    """
    rows: list[RuleRow] = []
    for stack in _stacks(pairs):
        for pair, runs, seconds, failed in _trained(stack, out):
            rows.append(_row(pair, runs, seconds, failed))
            if on_row is not None:
                on_row(len(rows), len(pairs), rows[-1])
    return rows


def noise_after(job: Job, run: Run) -> float:
    """Norm of the noise that reaches the model in a round, in units of C (root mean square).

    Noise alone, of the size that the draws of the run had, is sent through the aggregation, on a
    few coordinates and rounds. For the plain mean it is ``Plan.noise_to_clip`` up to chance; a rule
    that looks at the updates may treat noise alone otherwise than noise and signal.

    Args:
        job: what was trained.
        run: what it gave; only its public record is read.
    """
    import torch

    settings = job.plan.training
    width = min(_COORDINATES, settings.dimension)
    generator = torch.Generator().manual_seed(0)
    squares, memory = [], None
    for t in np.unique(np.linspace(0, len(run.history) - 1, _ROUNDS).astype(int)):
        line = run.history[t]
        clients = np.array(line.clients, dtype=np.int64)
        cohort = Cohort(
            round=line.round,
            clients=clients,
            draws=draw_numbers(clients),
            noise_multipliers=job.plan.noise_multipliers[clients],
            batch_sizes=job.plan.batch_sizes[clients],
            noise_stds=np.array(line.noise_stds, dtype=np.float64),
        )
        scale = _step_scale(job, cohort.round)
        stds = torch.as_tensor(scale * cohort.noise_stds, dtype=torch.float32)
        noise = stds[:, None] * torch.randn(len(cohort), width, generator=generator)
        combined, memory = combine_round(job.aggregation, noise, cohort, memory)
        squares.append(float(combined.square().mean()) / (scale * settings.clip) ** 2)
    return float(np.sqrt(settings.dimension * np.mean(squares)))


def _step_scale(job: Job, round: int) -> float:
    """How large a round's update is in units of one step's gradient, if nothing but noise."""
    training, step_size = job.plan.training, job.optimiser.step_size
    sizes = [step_size(training, round=round, step=i) for i in range(training.local_steps)]
    return math.sqrt(sum(size * size for size in sizes))


def _stacks(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    stack: list[Pair] = []
    for pair in pairs:
        jobs = pair[2]
        many = jobs[0].device.startswith("cuda") and jobs[0].engine == "batched"
        full = sum(len(held) for _, _, held in stack) + len(jobs) > _STACK
        if stack and (full or not many):
            yield stack
            stack = []
        stack.append(pair)
    if stack:
        yield stack


def _trained(stack: list[Pair], out: Path | None) -> Iterator[tuple[Pair, list[Run], float, str]]:
    if len(stack) > 1 and out is None:
        every = [job for _, _, jobs in stack for job in jobs]
        try:
            runs = train_side_by_side(every)
        except InputError:
            pass  # one of them fails; alone they say which
        else:
            shared = sum(line.seconds for line in runs[0].history) / len(every)
            for pair in stack:
                own, runs = runs[: len(pair[2])], runs[len(pair[2]) :]
                yield pair, own, shared, ""
            return
    for pair in stack:
        selection, aggregation, jobs = pair
        try:
            own = train_group(folder_name(f"{selection}, {aggregation}"), jobs, out)
        except InputError as error:
            yield pair, [], float("nan"), str(error)
            continue
        total = sum(line.seconds for run in own for line in run.history)
        stacked = len(own) if jobs[0].engine == "batched" else 1
        yield pair, own, total / len(own) / stacked, ""


def _row(pair: Pair, runs: Sequence[Run], seconds: float, failed: str) -> RuleRow:
    selection, aggregation, (job, *_) = pair
    plan, first = job.plan, runs[0] if runs else None
    groups = [] if first is None else who_was_heard(plan, first.ledger.draws)
    public = [group.heard for group in groups if group.name == "public"]
    summary = summarise_seeds(runs) if runs else None
    check = check_together(run.check for run in runs)
    return RuleRow(
        selection=selection,
        aggregation=aggregation,
        accuracy=None if summary is None else summary.accuracy,
        noise=float("nan") if first is None else noise_after(job, first),
        certified=max((_certified(run) for run in runs), default=float("nan")),
        bias=plan.selection.bias if not plan.participation.deciding else None,
        heard=tuple(group.heard for group in groups if group.name != "public"),
        heard_public=public[0] if public else None,
        seconds=seconds,
        failed=failed,
        metric="accuracy" if summary is None else summary.metric,
        score=None if summary is None else summary.score,
        caveat="" if check is None or check.is_better else check.sentence,
    )


def _certified(run: Run) -> float:
    """Largest certified epsilon over promised epsilon, from what was counted."""
    plan = run.plan
    if not plan.participation.deciding and np.array_equal(run.ledger.draws, plan.counts):
        held = plan.drawn & ~plan.population.public  # all as planned: the plan's certificate holds
        shares = plan.certified_epsilon[held] / plan.population.epsilon[held]
        return float(shares.max()) if held.any() else 0.0
    found = [  # raw reports are certified by nothing
        math.inf
        if receipt.certified_epsilon is None
        else receipt.certified_epsilon / receipt.promised_epsilon
        for receipt in run.receipts()
        if receipt.promised_epsilon
    ]
    return max(found, default=0.0)
