# SPDX-License-Identifier: Apache-2.0
"""``dpcohort compare``: runs, or every combination of a grid, seed by seed."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from csv import writer as csv_writer
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from dpcohort.atomic_file import write_text
from dpcohort.cli._sources import data_changes
from dpcohort.cli._terminal import (
    BackendOption,
    DataDirOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    SetOption,
    SimulateOption,
    console,
    new_table,
    print_json,
    say,
    showing_progress,
)
from dpcohort.config import Config, load_config
from dpcohort.errors import InputError
from dpcohort.metrics import METRICS, Check, check_together
from dpcohort.runs import EachRound, Run, compare_runs, load_group, summarise_seeds
from dpcohort.runs._evaluation import SeedSummary


def compare(
    sources: Annotated[
        list[Path] | None,
        Argument(
            metavar="RUN RUN... | CONFIG",
            help="Run folders (or folders of seeds), the first is the baseline; or one config "
            "with a grid table.",
        ),
    ] = None,
    config: Annotated[Path | None, Option(help="The config, as the argument.")] = None,
    changes: SetOption = None,
    simulate: SimulateOption = None,
    seeds: Annotated[int, Option(min=1, help="Seeds of a config's runs.")] = 5,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Keep a config's runs in this folder.")
    ] = None,
    csv: Annotated[Path | None, Option(help="Write the table here too.")] = None,
    latex: Annotated[Path | None, Option(help="The same, for a paper in LaTeX.")] = None,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    jobs: JobsOption = 1,
    backend: BackendOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare test results over the same seeds, runs or settings; say what it means."""
    places = [*(sources or []), *([] if config is None else [config])]
    is_config = len(places) == 1 and places[0].suffix.lower() == ".toml"
    if is_config:
        settings = load_config(places[0]).with_overrides(data_changes(changes, data_dir, simulate))
        groups = _train_grid(settings, seeds, out, device, (jobs, backend), quiet=as_json)
    else:
        groups = _load_groups(places, changes, out)

    first, *others = groups
    summaries = {name: summarise_seeds(runs) for name, runs in groups.items()}
    comparisons = [compare_runs(groups[n], groups[first], names=(n, first)) for n in others]
    checks = {name: check_together(run.check for run in runs) for name, runs in groups.items()}
    if csv is not None:
        write_text(csv, _groups_csv(summaries))
    if latex is not None:
        write_text(latex, _latex_table(groups_table(summaries, checks)))
    if as_json:
        print_json(
            groups={name: asdict(s) for name, s in summaries.items()},
            comparisons=[comparison.to_dict() for comparison in comparisons],
            checks={name: None if c is None else c.to_dict() for name, c in checks.items()},
        )
        return
    console.print(groups_table(summaries, checks))
    for name, check in checks.items():  # before anything is said in favour of a group
        if check is not None and not check.is_better:
            say(f"WARNING: {name}: {check.sentence}.", style="yellow")
    for comparison in comparisons:
        say(comparison.sentence)


def groups_table(summaries: Mapping[str, SeedSummary], checks: Mapping[str, Check | None]) -> Table:
    """The main metric of each group with its confidence interval."""
    metrics = {summary.metric: METRICS[summary.metric] for summary in summaries.values()}
    what = " or ".join(metric.words for metric in metrics.values())
    numbers = (f"test {what}", "95 % CI", "loss", "worst class", "seeds")
    table = new_table("runs", numbers=numbers, overflow="fold")
    for name, summary in summaries.items():
        found, worst, metric = summary.score, summary.worst_class, metrics[summary.metric]
        shown = "not a number" if found is None else metric.text(found.mean)
        shown += "" if (check := checks[name]) is None else check.auc_in_words
        interval = "-"
        if found is not None and found.count > 1:
            ends = (metric.shown(metric.scale * end) for end in (found.low, found.high))
            interval = " to ".join(ends)
        at_worst = None if worst is None else summary.class_accuracy[worst]
        table.add_row(
            Text(name),
            shown,
            interval,
            "-" if summary.loss is None else f"{summary.loss.mean:.3g}",
            "-" if at_worst is None else f"{worst}: {100 * at_worst.mean:.0f} %",
            str(len(summary.seeds)),
        )
    return table


def _groups_csv(summaries: Mapping[str, SeedSummary]) -> str:
    """One line a group, with its columns' names on top; an empty field is not known."""
    text = io.StringIO()
    lines = csv_writer(text, lineterminator="\n")
    lines.writerow(("runs", "metric", "mean", "low", "high", "loss", "seeds"))
    for name, summary in summaries.items():
        score, loss = summary.score, summary.loss
        numbers = ("", "", "") if score is None else (score.mean, score.low, score.high)
        many = len(summary.seeds)
        lines.writerow((name, summary.metric, *numbers, "" if loss is None else loss.mean, many))
    return text.getvalue()


def _latex_table(table: Table, *, leave_out: str = "") -> str:
    r"""A table of the terminal in LaTeX, with the rules of the package booktabs."""
    columns = [column for column in table.columns if column.header != leave_out]
    rows = [[str(column.header) for column in columns]]
    rows += [list(map(str, row)) for row in zip(*(c.cells for c in columns), strict=True)]
    head, *lines = [" & ".join(map(_in_latex, row)) + r" \\" for row in rows]
    align = "l" + "r" * (len(columns) - 1)
    body = [
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        head,
        r"\midrule",
        *lines,
        r"\bottomrule",
    ]
    return "\n".join([*body, r"\end{tabular}", ""])


def _in_latex(text: str) -> str:
    plain = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", "/").replace(",\n", ", "))
    return plain.replace("±", r"$\pm$").replace("ε", r"$\varepsilon$").replace("^", r"\^{}")


def _load_groups(
    sources: Sequence[Path], changes: list[str] | None, out: Path | None
) -> dict[str, Sequence[Run]]:

    if changes or out is not None:
        raise InputError.because("--set and --out are for a config with a [grid], not for runs.")
    if len(sources) < 2:
        raise InputError.because(
            "there is nothing to compare with: give two run folders or more, or one config (.toml) "
            "with a [grid]."
        )
    groups: dict[str, Sequence[Run]] = {}
    for source in sources:
        runs = load_group(source)
        label = str(runs[0].settings["label"])
        name = label if label not in groups else f"{label} ({source})"
        while name in groups:  # the same folder once more
            name += ", again"
        groups[name] = runs
    return groups


def _train_grid(
    config: Config,
    seeds: int,
    out: Path | None,
    device: str | None,
    processes: tuple[int, str],
    *,
    quiet: bool,
) -> dict[str, Sequence[Run]]:
    from dpcohort.runs import Workers
    from dpcohort.runs._training import train_grid

    def show(done: int, runs: Sequence[Run]) -> None:
        name, total = runs[0].settings["label"], runs[0].plan.training.rounds
        if not quiet and (done == total or done % max(1, total // 10) == 0):
            tested, metric = [run.test.score for run in runs if run.has_test], runs[0].metric
            mean = sum(tested) / len(tested) if tested else 0.0
            score = f"  {metric.words} {metric.text(mean)}" if tested else ""
            console.print(f"{name}: round {done}/{total}{score}")

    workers = Workers(*processes)
    options: dict[str, Any] = {"seeds": seeds, "out": out, "device": device, "workers": workers}
    if workers.are_elsewhere:
        with showing_progress("compare", quiet=quiet) as progress:
            return {**train_grid(config, **options, progress=progress)}
    shown = EachRound(seeds, show, lambda run: run.settings["label"])
    return {**train_grid(config, **options, callbacks=[shown])}
