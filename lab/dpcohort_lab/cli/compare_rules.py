# SPDX-License-Identifier: Apache-2.0
"""``dpcohort compare-rules``: selection and aggregation rules in pairs, over the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpcohort.atomic_file import write_text
from dpcohort.cli import (
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
    typed_here,
)
from dpcohort.config import load_config
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dpcohort.config import Config
    from dpcohort_lab.rule_comparison import RuleRow, Skipped


def compare_rules(
    source: Annotated[Path, Argument(metavar="CONFIG", help="A config with data (.toml).")],
    selection: Annotated[
        str | None,
        Option(
            metavar="RULE,RULE...",
            help="Compare these selections, as in unbiased,threshold(threshold=1); or all. The "
            "config's own if only --aggregation is given.",
            callback=typed_here,
        ),
    ] = None,
    aggregation: Annotated[
        str | None,
        Option(
            metavar="RULE,RULE...",
            help="Compare these aggregations; or all. The config's own if only --selection is "
            "given.",
            callback=typed_here,
        ),
    ] = None,
    changes: SetOption = None,
    seeds: Annotated[int, Option(min=1, help="Seeds of each pair.")] = 5,
    out: Annotated[Path | None, Option("--out", "-o", help="Keep the runs in this folder.")] = None,
    csv: Annotated[Path | None, Option(help="Write the table here too.")] = None,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare selection and aggregation rules in pairs, over the same seeds."""
    for option, words in (("--selection", selection), ("--aggregation", aggregation)):
        if words is not None and not all(word.strip() for word in words.split(",")):
            raise InputError(option, given=words, allowed="names of rules, or all")
    config = load_config(source).with_overrides(data_changes(changes, data_dir))
    every = "all" if selection is None and aggregation is None else None
    wanted = {"selection": selection or every, "aggregation": aggregation or every}
    rows, skipped = _compared_rules(config, wanted, seeds, out, device, quiet=as_json)
    from dpcohort_lab.rule_comparison import csv_table, plain_table

    if csv is not None:
        write_text(csv, csv_table(rows))
    if as_json:
        print_json(plain_table(rows, skipped))
    else:
        console.print(pairs_table(rows))
        _explain_pairs(rows, skipped)


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
    from dpcohort.plain_text import counted
    from dpcohort_lab.rule_comparison import RuleChoice, chosen_rules, compare_rules, rule_pairs

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
    half = metric.scale * (found.high - found.low) / 2
    spread = f" ± {metric.shown(half)}" if found.count > 1 else ""
    percent = " %" if metric.is_share else ""
    return f"{metric.shown(metric.scale * found.mean)}{spread}{percent}"


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
