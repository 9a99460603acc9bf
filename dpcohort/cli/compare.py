# SPDX-License-Identifier: Apache-2.0
"""``dpcohort compare``: runs, every combination of a grid, or pairs of rules, seed by seed."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from csv import writer as csv_writer
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpcohort.atomic_file import write_text
from dpcohort.cli.terminal import (
    DataDirOption,
    DeviceOption,
    JsonOption,
    SetOption,
    console,
    data_changes,
    new_table,
    print_json,
    say,
    sparkline,
)
from dpcohort.config import load_config
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dpcohort.config import Config
    from dpcohort.lab.rule_comparison import RuleRow, Skipped
    from dpcohort.runs.evaluation import SeedSummary
    from dpcohort.runs.run import Run

_SOME = "For some of them: --selection unbiased,privacy-aware --aggregation mean"


def compare(
    sources: Annotated[
        list[Path] | None,
        Argument(
            metavar="RUN RUN... | CONFIG",
            help="Run folders (or folders of seeds), the first is the baseline; or one config: "
            "with a grid table, or with --rules.",
        ),
    ] = None,
    config: Annotated[Path | None, Option(help="The config, as the argument.")] = None,
    rules: Annotated[
        str | None, Option(metavar="all", help="Compare every selection with every aggregation.")
    ] = None,
    selection: Annotated[
        str | None,
        Option(
            metavar="RULE,RULE...",
            help="Compare these selections, as in unbiased,threshold(threshold=1); or all.",
        ),
    ] = None,
    aggregation: Annotated[
        str | None, Option(metavar="RULE,RULE...", help="Compare these aggregations; or all.")
    ] = None,
    changes: SetOption = None,
    seeds: Annotated[int, Option(min=1, help="Seeds of a config's runs.")] = 5,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Keep a config's runs in this folder.")
    ] = None,
    csv: Annotated[Path | None, Option(help="Write the table here too.")] = None,
    latex: Annotated[Path | None, Option(help="The same, for a paper in LaTeX.")] = None,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare test results over the same seeds: runs, settings or rules; say what it means."""
    places = [*(sources or []), *([] if config is None else [config])]
    is_config = len(places) == 1 and places[0].suffix.lower() == ".toml"
    if rules is not None or selection is not None or aggregation is not None:
        if not is_config:
            raise InputError.because("rules are compared on one config (.toml): give it.")
        if rules not in (None, "all"):
            raise InputError("--rules", given=rules, allowed="all", next_step=_SOME)
        for option, words in (("--selection", selection), ("--aggregation", aggregation)):
            if words is not None and not all(word.strip() for word in words.split(",")):
                raise InputError(option, given=words, allowed="names of rules, or all")
        settings = load_config(places[0]).with_overrides(data_changes(changes, data_dir))
        every = "all" if rules == "all" else None
        wanted = (("selection", selection or every), ("aggregation", aggregation or every))
        rows, skipped = _compared_rules(settings, dict(wanted), seeds, out, device, quiet=as_json)
        from dpcohort.lab.rule_comparison import csv_table, plain_table

        if csv is not None:
            write_text(csv, csv_table(rows))
        if latex is not None:
            write_text(latex, _latex_table(pairs_table(rows), leave_out="heard by ε"))
        if as_json:
            print_json(plain_table(rows, skipped))
        else:
            console.print(pairs_table(rows))
            _explain_pairs(rows, skipped)
        return
    if is_config:
        settings = load_config(places[0]).with_overrides(data_changes(changes, data_dir))
        groups = _train_grid(settings, seeds, out, device, quiet=as_json)
    else:
        groups = _load_groups(places, changes, out)
    from dpcohort.metrics import check_together
    from dpcohort.runs.evaluation import compare_runs, summarise_seeds

    first, *others = groups
    summaries = {name: summarise_seeds(runs) for name, runs in groups.items()}
    comparisons = [compare_runs(groups[n], groups[first], names=(n, first)) for n in others]
    checks = {name: check_together(run.check for run in runs) for name, runs in groups.items()}
    if csv is not None:
        write_text(csv, _groups_csv(summaries))
    if latex is not None:
        write_text(latex, _latex_table(groups_table(summaries)))
    if as_json:
        print_json(
            groups={name: asdict(s) for name, s in summaries.items()},
            comparisons=[comparison.to_dict() for comparison in comparisons],
            checks={name: None if c is None else c.to_dict() for name, c in checks.items()},
        )
        return
    console.print(groups_table(summaries))
    for name, check in checks.items():  # before anything is said in favour of a group
        if check is not None and not check.is_better:
            say(f"WARNING: {name}: {check.sentence}.", style="yellow")
    for comparison in comparisons:
        say(comparison.sentence)


def groups_table(summaries: dict[str, SeedSummary]) -> Table:
    """The main metric of each group with its confidence interval."""
    from rich.text import Text

    from dpcohort.metrics import METRICS

    metrics = {summary.metric: METRICS[summary.metric] for summary in summaries.values()}
    what = " or ".join(metric.words for metric in metrics.values())
    numbers = (f"test {what}", "95 % CI", "loss", "worst class", "seeds")
    table = new_table("runs", numbers=numbers, overflow="fold")
    for name, summary in summaries.items():
        found, worst, metric = summary.score, summary.worst_class, metrics[summary.metric]
        shown = "not a number" if found is None else metric.text(found.mean)
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
    from dpcohort.runs.evaluation import load_group

    if changes or out is not None:
        raise InputError.because("--set and --out are for a config with a [grid], not for runs.")
    if len(sources) < 2:
        raise InputError.because(
            "there is nothing to compare with: give two run folders or more, or one config (.toml) "
            "with a [grid] or with --rules all."
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
    config: Config, seeds: int, out: Path | None, device: str | None, *, quiet: bool
) -> dict[str, Sequence[Run]]:
    from dpcohort.runs.training import train_grid

    def show(name: str, done: int, total: int, runs: Sequence[Run]) -> None:
        if not quiet and (done == total or done % max(1, total // 10) == 0):
            tested, metric = [run.test.score for run in runs if run.has_test], runs[0].metric
            mean = sum(tested) / len(tested) if tested else 0.0
            score = f"  {metric.words} {metric.text(mean)}" if tested else ""
            console.print(f"{name}: round {done}/{total}{score}")

    return {**train_grid(config, seeds=seeds, out=out, device=device, on_round=show)}


def _compared_rules(
    config: Config,
    wanted: dict[str, str | None],
    seeds: int,
    out: Path | None,
    device: str | None,
    *,
    quiet: bool,
) -> tuple[list[RuleRow], list[Skipped]]:
    """Plan and check every pair of the wanted rules, or of the config's own, and train them all."""
    # torch is loaded only now, when the configuration is known to be good.
    from dpcohort.lab.rule_comparison import RuleChoice, chosen_rules, compare_rules, rule_pairs
    from dpcohort.plain_text import counted

    own = {"selection": config.rule, "aggregation": config.aggregation[0]}
    chosen = {
        section: [RuleChoice(section=section, name=own[section], label=own[section])]
        if text is None
        else chosen_rules(section, text)
        for section, text in wanted.items()
    }
    pairs, skipped = rule_pairs(
        config,
        selections=chosen["selection"],
        aggregations=chosen["aggregation"],
        seeds=seeds,
        device=device,
    )
    if not quiet:
        left = f"; {counted(len(skipped), 'pair')} left out." if skipped else "."
        console.print(
            f"{counted(len(pairs), 'pair')} of rules, {counted(seeds, 'seed')} each{left}"
        )

    def show(done: int, total: int, row: RuleRow) -> None:
        if not quiet:
            score = row.failed or _score(row)
            say(f"{done}/{total} {row.selection}, {row.aggregation}: {score}")

    return compare_rules(pairs, out=out, on_row=show), skipped


def pairs_table(rows: Sequence[RuleRow]) -> Table:
    """Main metric, noise, certificate, bias and participation of each pair, best first."""
    from rich.text import Text

    from dpcohort.metrics import METRICS

    table = new_table("rules", overflow="fold")
    table.collapse_padding = True
    # Two names and the numbers do not fit into 80 columns.
    between = ", " if console.width >= 110 else ",\n"
    metric = METRICS[rows[0].metric]
    head = f"{metric.words} %" if metric.is_share else metric.words
    for name in (head, "noise/C", "ε used", "bias", "heard by ε", "s"):
        table.add_column(name, justify="right", no_wrap=True)

    def order(row: RuleRow) -> float:
        better = -1 if metric.higher_is_better else 1
        return math.inf if row.score is None else better * row.score.mean

    for row in sorted(rows, key=order):
        table.add_row(
            Text(f"{row.selection}{between}{row.aggregation}"),
            "failed" if row.score is None else _score(row).removesuffix(" %"),
            f"{row.noise:.3g}",
            f"{100 * row.certified:.1f} %",
            "-" if row.bias is None else f"{row.bias:.2f}",
            sparkline(row.heard),
            f"{row.seconds:.1f}",
        )
    return table


def _score(row: RuleRow) -> str:
    from dpcohort.metrics import METRICS

    found, metric = row.score, METRICS[row.metric]
    if found is None:
        return "-"
    percent = " %" if metric.is_share else ""
    if found.count == 1:
        return f"{metric.shown(metric.scale * found.mean)}{percent}"
    return f"{metric.spread(found.mean, found.low, found.high)}{percent}"


def _explain_pairs(rows: Sequence[RuleRow], skipped: Sequence[Skipped]) -> None:
    from dpcohort.metrics import METRICS

    for row in rows:
        if row.caveat:
            say(f"WARNING: {row.selection}, {row.aggregation}: {row.caveat}.", style="yellow")
    words = METRICS[rows[0].metric].words
    console.print(
        f"{words}: mean over seeds and half of its 95 % interval. noise/C: norm of the noise that "
        "reaches the model in a round. ε used: largest certified share of a promised ε. bias: "
        "‖p − p^u‖₁. heard by ε: draws over records, the strictest tenth of the clients first."
    )
    why = itemgetter(2)
    for reason, pairs in groupby(sorted(skipped, key=why), key=why):
        left_out = list(pairs)
        few = ", ".join(f"{one} with {other}" for one, other, _ in left_out[:2])
        more = f" and {len(left_out) - 2} more" if len(left_out) > 2 else ""
        say(f"left out: {few}{more}: {reason}")
