# SPDX-License-Identifier: Apache-2.0
"""``dpcohort train`` and ``watch``: execute a configuration's plan, and look at a run.

A run is shown as a live picture on a terminal, and in one line a round in a pipe.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from dpcohort.accounting._unit import unit_of
from dpcohort.cli._sources import data_changes, say_unnamed_charge
from dpcohort.cli._terminal import (
    DataDirOption,
    DeviceOption,
    JsonOption,
    SetOption,
    SimulateOption,
    console,
    print_json,
    program,
    say,
    show_messages,
    sparkline,
)
from dpcohort.config import Config, load_config
from dpcohort.data import Dataset
from dpcohort.errors import InputError
from dpcohort.metrics import check_together
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord
from dpcohort.runs import Callback, Run, summarise_seeds, who_was_heard
from dpcohort.runs._callbacks import added_noise
from dpcohort.runs._config_clients import unnamed_charge
from dpcohort.runs._folder import RECEIPTS
from dpcohort.runs._paid_evaluation import in_words
from dpcohort.runs._provenance import HOW_TO_SIMULATE
from dpcohort.runs._receipts import read_receipts
from dpcohort.runs._status import run_of
from dpcohort.runs._success import judged_words


def train(
    source: Annotated[Path, Argument(metavar="CONFIG", help="A config with data (.toml).")],
    out: Annotated[Path, Option("--out", "-o", help="The run folder to write.")],
    resume: Annotated[bool, Option("--resume", help="Go on with the run in that folder.")] = False,
    changes: SetOption = None,
    seeds: Annotated[int, Option(min=1, help="How many runs, with seeds one after the other.")] = 1,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    simulate: SimulateOption = None,
    tensorboard: Annotated[Path | None, Option(help="Write TensorBoard events here.")] = None,
    plan: Annotated[
        Path | None,
        Option(
            "--plan",
            help="A saved plan (.json) with its clients, cohorts and noise; data, model and "
            "optimiser are the config's.",
        ),
    ] = None,
    after: Annotated[
        Path | None,
        Option("--after", metavar="RUN", help="The run that a plan of replan goes on from."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train; the ledger is written before every round, so a crash never hides spending.

    Several GPUs or machines: torchrun --nproc-per-node 2 -m dpcohort train CONFIG --out RUN
    """
    config = load_config(source).with_overrides(data_changes(changes, data_dir, simulate))
    frozen = None if plan is None else _frozen(plan, seeds, config, quiet=as_json)
    if after is not None and frozen is None:
        raise InputError.because(
            f"--after goes with a plan: dpcohort replan {after} --clients NEW.csv --out plan.json, "
            "then --plan plan.json."
        )
    if seeds > 1 and (out / "run.json").exists():
        raise InputError.because(
            f"{out} holds one run; several seeds need a folder of their own. Choose another --out."
        )
    from dpcohort.runs import TensorBoardLog, configured_data, configured_job
    from dpcohort.runs._training import train_job

    show_messages()
    data = configured_data(config, None if frozen is None else frozen.population.ids)
    if frozen is not None and not as_json:
        _say_who_is_not_in(frozen, data)
    runs: list[Run] = []
    for shift in range(seeds):
        job = configured_job(
            config,
            data=data,
            shift=shift,
            device=device,
            plan=frozen,
            after=after,
        )
        if job.private and seeds > 1:
            raise InputError.because(
                "a private run releases a model, and each release spends every budget again: "
                f"several seeds would spend it several times. Use one seed. {HOW_TO_SIMULATE}"
            )
        if job.simulate is not None and not runs and not as_json:
            why = "its data are public" if config.run.simulate is None else "as asked"
            say(f"SIMULATION with noise of seed {job.simulate}, NOT PRIVATE: {why}.")
        words = unnamed_charge(config, job.plan.population.ids, job.plan.past.paid.charges)
        say_unnamed_charge(words, private=job.private)
        unused = job.partition.records - job.partition.indices.size
        if after is not None and data.clients is None and unused and not as_json:
            say(f"note: {unused} records are of no client of the plan, and are not used.")
        place = out if seeds == 1 else out / f"seed-{job.seed}"
        is_new = not runs and not (place / "result.json").exists()
        if job.evaluation is not None and is_new and not as_json:
            say(f"{_sentence(job.evaluation.buys)}.")
        title = f"{job.title}: {job.model_name} on {data.name}"
        with watching(f"{title}, seed {job.seed}", quiet=as_json) as callbacks:
            listeners: list[Callback] = [*callbacks]
            if tensorboard is not None:
                listeners.append(TensorBoardLog(tensorboard / f"seed-{job.seed}"))
            run = train_job(job, out=place, resume=resume, callbacks=listeners)
        for words in [] if as_json else run.warnings:
            console.print(f"note: {words}")
        runs.append(run)
    if as_json:
        print_json(summary_of(runs, out))
    else:
        _print_runs(runs, out)


def _frozen(path: Path, seeds: int, config: Config, *, quiet: bool) -> Plan:
    """A finished plan; where the config says otherwise, the plan counts, and that is said."""
    found = Plan.load(path)
    if seeds > 1:
        found.past.refuse_seeds()
    planned, asked = asdict(found.training), asdict(config.training)
    given = config.values.get("training", {})
    # A dimension that is wrong is refused. What a promise means is told even where it is unsaid.
    told = [("training", key) for key in planned if key in given and key != "dimension"]
    told += [("privacy", key) for key in found.contract.settings()]
    planned, asked = planned | found.contract.settings(), asked | config.contract.settings()
    for section, key in [] if quiet else told:
        if planned[key] != asked[key]:
            say(
                f"note: the plan has {section}.{key} = {planned[key]}, the config {asked[key]}; "
                "the plan counts."
            )
    return found


def _say_who_is_not_in(plan: Plan, data: Dataset) -> None:
    """Rows of clients that a plan does not know are not used, and that is said."""
    if data.clients is None:
        return
    names = np.setdiff1d(data.clients, plan.population.ids).tolist()
    if names:
        shown = ", ".join(map(one_line, names[:5])) + (", ..." if len(names) > 5 else "")
        say(f"note: rows of {shown} are not used: not in the plan.")


def summary_of(runs: Sequence[Run], out: Path) -> dict[str, Any]:
    """What a program wants to know about finished runs."""
    first, check = runs[0], check_together(run.check for run in runs)
    # As they were written when each run ended: certified once.
    receipts = [
        receipt for run in runs for _, receipt in read_receipts((run.path or out) / RECEIPTS)
    ]
    return {
        "out": str(out),
        "plan": first.plan.sha256,
        "result": asdict(summarise_seeds(runs)) if first.has_test else None,
        "metrics": first.judged.get("metrics"),
        "trivial": first.judged.get("trivial"),
        "check": None if check is None else check.to_dict(),
        "evaluation": first.evaluation,
        "heard": [asdict(group) for group in who_was_heard(first.plan, first.ledger.draws)],
        "receipts": len(receipts),
        "promises_hold": all(receipt.holds for receipt in receipts),
        "private": first.is_private,
        "stamp": receipts[0].stamp if receipts else "",
        "warnings": [words for run in runs for words in run.warnings]
        + judged_words([run.judged for run in runs]),
        "runs": [_told(run) for run in runs],
    }


def _told(run: Run) -> dict[str, Any]:
    told = {"seed": run.seed, "path": str(run.path), "test_accuracy": None}
    if run.has_test:
        told["test_accuracy"] = run.test_accuracy
        if run.metric.name != "accuracy":
            told[f"test_{run.metric.name}"] = run.test.score
    return told


def _print_runs(runs: Sequence[Run], out: Path) -> None:

    found = summary_of(runs, out)
    if found["result"] is not None:
        _print_score(runs, found["result"])
    for run in runs:
        _print_evaluation(run)
    for words in judged_words([run.judged for run in runs]):
        say(f"WARNING: {words}", style="yellow")
    kept = "all promises hold" if found["promises_hold"] else "NOT ALL PROMISES HOLD"
    receipts = "1 receipt" if found["receipts"] == 1 else f"{found['receipts']} receipts"
    stamp = str(found["stamp"])
    console.print(f"{receipts}, {kept}. {stamp[:1].upper()}{stamp[1:]}")
    name = program()
    say(f"Run: {out}   Next: {name} verify {out}, {name} report {out}")


def _print_evaluation(run: Run) -> None:
    """What the clients paid to have told: metrics with intervals that include the noise."""
    if (found := run.evaluation) is None:
        return
    say(
        f"Evaluation, paid for by {100 * found['kept']:.3g} % of each budget (charge "
        f"{str(found['charge'])[:8]}): {found['records']:,} test {unit_of(found['unit']).several}, "
        "intervals with the noise."
    )
    for name, text in in_words(found["in_all"]).items():
        say(f"  {_sentence(name)} {text}")
    told = list(found.get("clients", {}).items())
    for client, metrics in told[:_TIGHTEST] if len(told) > 1 else []:
        name, text = next(iter(in_words(metrics).items()))
        say(f"  {one_line(client)}: {name} {text}")
    if len(told) > _TIGHTEST:
        say(f"  ... and {len(told) - _TIGHTEST} more clients, in result.json")


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _print_score(runs: Sequence[Run], result: Mapping[str, Any]) -> None:
    """The main metric over the seeds, beside the best constant's."""
    metric, score = runs[0].metric, result["score"]
    console.print(f"{metric.words} {sparkline(runs[0].curve().score.tolist())}")
    seeds = f"{len(runs)} seeds, " if len(runs) > 1 else ""
    rounds = f"{seeds}{runs[0].plan.training.rounds} rounds"
    if score is None:
        say(f"Test {metric.words} is not a number: {rounds}.")
        return
    spread = ""
    if len(runs) > 1:
        ends = (metric.shown(metric.scale * score[end]) for end in ("low", "high"))
        spread = f" (95 % CI {' to '.join(ends)})"
    check = check_together(run.check for run in runs)
    beside = ""
    if check is not None:
        word = "better than" if check.is_better else "NOT clearly better than"
        if check.gain <= 0:
            word = "NOT better than"
        beside = f" {word[0].upper()}{word[1:]} {check.says} ({metric.text(check.trivial)})."
    auc = "" if check is None else check.auc_in_words
    say(f"Test {metric.words} {metric.text(score['mean'])}{spread}{auc}: {rounds}.{beside}")


_QUIET_SECONDS = 60.0  # without a new round it says so


def watch(
    path: Annotated[Path, Argument(metavar="RUN", help="The run folder, or federation.toml.")],
    interval: Annotated[float, Option(min=0.1, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, Option("--once", help="Say how it stands and end.")] = False,
    serve: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="Serve a live page, as 127.0.0.1:8765; read-only."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Watch a run; it ends with the run, or with Ctrl-C, and never touches the run's files."""
    if serve is not None:
        _watch_page(path, serve)
        return
    path = run_of(path)
    if once or as_json:
        run, _ = next(_states(path, interval))
    else:
        try:
            run = (_watch_live if console.is_terminal else _watch_lines)(path, interval)
        except KeyboardInterrupt:
            console.print("Stopped watching; the run goes on by itself.")
            return
    _tell(run, as_json=as_json)


def _watch_page(path: Path, address: str) -> None:
    from dpcohort.cli._page import serve_page  # nothing else needs a server

    print(serve_page(path, address), flush=True)
    say("Open this link: who has it may look, nobody may change anything. End it with Ctrl-C.")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("Stopped watching; the run goes on by itself.")


def _states(path: Path, interval: float) -> Iterator[tuple[Run, float]]:
    """The run each time it was looked at, and the seconds since its last round."""
    seen, since = -1, time.monotonic()
    while True:
        run = Run.load(path)
        if run.rounds_done != seen:
            seen, since = run.rounds_done, time.monotonic()
        yield run, time.monotonic() - since
        if run.is_finished:
            return
        time.sleep(interval)


def _watch_live(path: Path, interval: float) -> Run:
    with Live(Text(str(path)), console=console, refresh_per_second=4, transient=True) as live:
        for run, quiet in _states(path, interval):
            if run.history:
                live.update(picture(_title(run), run.history[-1], run, _time_left(run, quiet)))
    return run


def _watch_lines(path: Path, interval: float) -> Run:
    told, warned = 0, False
    for run, quiet in _states(path, interval):
        for line in run.history[told:]:
            say(round_sentence(line, run))
        told, warned = run.rounds_done, warned and run.rounds_done == told
        if quiet > _QUIET_SECONDS and not warned:
            warned = True
            console.print(_quiet_words(quiet))
    return run


def _title(run: Run) -> str:
    model, data = run.settings.get("model"), run.settings.get("data")
    name = data.get("name", "its data") if isinstance(data, dict) else "its data"
    trained = model.get("name", "a model") if isinstance(model, dict) else model or "a model"
    return f"{run.settings.get('label') or run.plan.rule}: {trained} on {name}"


def _time_left(run: Run, quiet: float) -> str:
    if quiet > _QUIET_SECONDS:
        return _quiet_words(quiet)
    seconds = [line.seconds for line in run.history if math.isfinite(line.seconds)]
    if not seconds or run.is_finished:
        return ""
    recent = seconds[-20:]
    left = sum(recent) / len(recent) * (run.plan.training.rounds - run.rounds_done)
    return f"{left:.0f} s left"


def _quiet_words(quiet: float) -> str:
    return f"no new round for {quiet:.0f} s; is the training still running?"


def _tell(run: Run, *, as_json: bool) -> None:

    tested = run.has_test and math.isfinite(run.test.score)
    score = run.test.score if tested else None
    total = run.plan.training.rounds
    if as_json:
        print_json(
            run=str(run.path),
            rounds_done=run.rounds_done,
            rounds=total,
            finished=run.is_finished,
            test_accuracy=score if run.metric.name == "accuracy" else None,
            private=run.is_private,
            **({} if run.metric.name == "accuracy" else {f"test_{run.metric.name}": score}),
            evaluation=run.evaluation,
            warnings=judged_words([run.judged]),
        )
        return
    state = "finished" if run.is_finished else "not finished"
    found = "" if score is None else f", test {run.metric.words} {run.metric.text(score)}"
    check = run.check
    if check is not None and check.is_better:
        found += f" (better than {check.says}: {run.metric.text(check.trivial)})"
    console.print(f"{_title(run)}: {state}, round {run.rounds_done}/{total}{found}.")
    _print_evaluation(run)
    for words in judged_words([run.judged]):
        say(f"WARNING: {words}", style="yellow")
    step = "verify" if run.is_finished else "train CONFIG --resume --out"
    say(f"Next: {program()} {step} {run.path}")


_BAR = 24
_TIGHTEST = 10
_COHORT = 8
_NAME = 30


class TrainingView:
    """Shows every round; a callback of ``train``.

    Args:
        title: what is trained.
        live: the picture to update; None prints lines.
        screen: where lines go.
    """

    def __init__(self, title: str, live: Live | None = None, screen: Console = console) -> None:
        self._title, self._live, self._screen = title, live, screen
        self._began, self._first = time.monotonic(), 0

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Show a round."""
        if self._first == 0:
            self._first = run.rounds_done
        if self._live is None:
            self._screen.print(round_sentence(record, run), soft_wrap=True)
        else:
            fresh = max(1, run.rounds_done - self._first + 1)
            pace = (time.monotonic() - self._began) / fresh
            left = pace * (run.plan.training.rounds - run.rounds_done)
            self._live.update(picture(self._title, record, run, f"{left:.0f} s left"))


def picture(title: str, record: RoundRecord, run: Run, time_left: str = "") -> RenderableType:
    """A run after a round: how far it is, how good, who was heard, whose budget is used up."""
    done, total = run.rounds_done, run.plan.training.rounds
    told = f", {time_left}" if time_left else ""
    progress = Table.grid(padding=(0, 1))
    progress.add_column()
    progress.add_column(no_wrap=True)
    progress.add_row(_Bar(done / total, _BAR * 2), f"round {done}/{total}{told}")
    parts: list[RenderableType] = [Text(title, style="bold"), progress]
    curve = run.curve()
    if curve.score.size:
        best = run.metric.text(float(curve.score[-1]))
        line = f"{run.metric.words} {sparkline(curve.score.tolist())} {best}"
        parts.append(Text(line, style="green"))
    return Group(*parts, _cohort(record, run), _budgets(run))


def round_sentence(record: RoundRecord, run: Run) -> str:
    """One round in one line, for a pipe or a log."""
    total = run.plan.training.rounds
    if record.lost:
        return f"round {record.round + 1}/{total}  lost in a crash; counted, not computed again"
    found = record.scored
    metric = run.metric
    score = "" if found is None else f"  {metric.words} {metric.text(found.score)}"
    added = added_noise(record, run)
    low, high = min(added), max(added)
    noise = f"{run.plan.noise.word} {run.plan.noise.span(low, high)}"
    names = [run.plan.population.ids[client] for client in record.clients]
    shown = ", ".join(map(one_line, names[:_COHORT])) + (", ..." if len(names) > _COHORT else "")
    return f"round {record.round + 1}/{total}{score}  {noise}  {shown}"


@contextmanager
def watching(title: str, *, quiet: bool = False) -> Iterator[list[TrainingView]]:
    """Callbacks that show a training; none where only the result is wanted."""
    if quiet:
        yield []
    elif console.is_terminal:
        with Live(Text(title), console=console, refresh_per_second=8, transient=True) as live:
            yield [TrainingView(title, live)]
    else:
        yield [TrainingView(title)]


def _rows() -> Table:
    """Rows of one line each: on a narrow screen first the bars become short, then the names."""
    table = Table.grid(padding=(0, 1))
    for width in (None, _NAME, None, None):
        table.add_column(no_wrap=True, max_width=width)
    table.add_column()
    return table


def _cohort(record: RoundRecord, run: Run) -> Table:
    table = _rows()
    kind, levels = run.plan.noise.levels(record.clients, record.noise_stds)
    largest = max(levels) or 1.0
    pairs = sorted(zip(levels, record.clients, strict=True), reverse=run.plan.noise.only_sums)
    for level, client in pairs[:_COHORT]:
        epsilon = run.plan.population.epsilon[client]
        budget = "public" if epsilon != epsilon else f"ε {epsilon:.3g}"
        name = Text(one_line(run.plan.population.ids[client]))
        table.add_row("  drawn", name, budget, f"{kind} {level:.3g}", _Bar(level / largest))
    if len(pairs) > _COHORT:
        table.add_row("", f"and {len(pairs) - _COHORT} more")
    return table


def _budgets(run: Run) -> Table:
    """How many of their planned draws the strictest clients have used."""
    plan, draws = run.plan, run.ledger.draws
    table = _rows()
    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    share_used = draws[held] / plan.counts[held]
    order = np.lexsort((plan.population.epsilon[held], -share_used))
    for k in held[order[:_TIGHTEST]].tolist():
        used, planned = int(draws[k]), int(plan.counts[k])
        share = used / planned
        style = "red" if share >= 1 else "yellow" if share > 0.8 else ""
        table.add_row(
            " budget",
            Text(one_line(plan.population.ids[k])),
            f"ε {plan.population.epsilon[k]:.3g}",
            f"{used}/{planned} draws",
            _Bar(share, style=style),
        )
    return table


class _Bar:
    """A bar that takes the room there is, up to its width."""

    def __init__(self, share: float, width: int = _BAR, *, style: str = "") -> None:
        self.share, self.width, self.style = share, width, style

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width, options.max_width)
        filled = round(min(max(self.share, 0.0), 1.0) * width)
        yield Text("█" * filled + "░" * (width - filled), style=self.style)

    def __rich_measure__(self, screen: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(self.width, options.max_width))
