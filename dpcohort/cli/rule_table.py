# SPDX-License-Identifier: Apache-2.0
"""The table of ``dpcohort compare --rules``: pairs of rules, one row each."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from dpcohort.atomic_file import write_text
from dpcohort.cli.output import console, print_json, sparkline
from dpcohort.config import load_config

if TYPE_CHECKING:
    from rich.table import Table

    from dpcohort.lab.rule_comparison import RuleRow, RuleTable

__all__ = ["compare_rule_pairs", "pairs_table"]

_WIDE = 110


def compare_rule_pairs(
    source: Path,
    *,
    selection: str | None,
    aggregation: str | None,
    changes: list[str],
    seeds: int,
    out: Path | None,
    csv: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Plan and check every pair, then train them all and print the table."""
    config = load_config(source).with_overrides(changes)
    # torch is loaded only now, when the configuration is known to be good.
    from dpcohort.lab.rule_comparison import RuleChoice, chosen_rules, compare_rules, rule_pairs

    chosen = {}
    for section, text, own in (
        ("selection", selection, config.rule),
        ("aggregation", aggregation, config.aggregation[0]),
    ):
        chosen[section] = (
            [RuleChoice(section=section, name=own, label=own)]
            if text is None
            else chosen_rules(section, text)
        )
    pairs, skipped = rule_pairs(
        config,
        selections=chosen["selection"],
        aggregations=chosen["aggregation"],
        seeds=seeds,
        device=device,
    )
    if not as_json:
        words = f"{_counted(len(pairs), 'pair')} of rules, {_counted(seeds, 'seed')} each"
        left = f"; {_counted(len(skipped), 'pair')} left out." if skipped else "."
        console.print(f"{words}{left}")

    def show(done: int, total: int, row: RuleRow) -> None:
        if not as_json:
            accuracy = row.failed or _accuracy(row)
            console.print(
                f"{done}/{total} {row.selection}, {row.aggregation}: {accuracy}", soft_wrap=True
            )

    found = compare_rules(pairs, skipped, out=out, on_row=show)
    if csv is not None:
        write_text(csv, found.to_csv())
    if as_json:
        print_json(found.to_dict())
        return
    console.print(pairs_table(found))
    _tell_skipped(found)


def pairs_table(found: RuleTable) -> Table:
    """Accuracy, noise, certificate, bias and participation of each pair, best first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("rules", overflow="fold")
    # Two names and the numbers do not fit into 80 columns.
    between = ", " if console.width >= _WIDE else ",\n"
    for name in ("accuracy %", "noise/C", "ε used", "bias", "heard by ε", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in sorted(found.rows, key=lambda r: 1.0 if r.accuracy is None else -r.accuracy.mean):
        table.add_row(
            Text(f"{row.selection}{between}{row.aggregation}"),
            "failed" if row.accuracy is None else _accuracy(row).removesuffix(" %"),
            f"{row.noise:.3g}",
            f"{100 * row.certified:.1f} %",
            "-" if row.bias is None else f"{row.bias:.2f}",
            sparkline(row.heard),
            f"{row.seconds:.1f}",
        )
    return table


def _accuracy(row: RuleRow) -> str:
    found = row.accuracy
    if found is None:
        return "-"
    half = (found.high - found.low) / 2
    spread = f" ± {100 * half:.1f}" if found.count > 1 else ""
    return f"{100 * found.mean:.1f}{spread} %"


def _tell_skipped(found: RuleTable) -> None:
    console.print(
        "accuracy: mean over seeds and half of its 95 % interval. noise/C: norm of the noise that "
        "reaches the model in a round. ε used: largest certified share of a promised ε. bias: "
        "‖p − p^u‖₁. heard by ε: draws over records, the strictest tenth of the clients first."
    )
    why = attrgetter("reason")
    for reason, pairs in groupby(sorted(found.skipped, key=why), key=why):
        left_out = list(pairs)
        few = ", ".join(f"{p.selection} with {p.aggregation}" for p in left_out[:2])
        more = f" and {len(left_out) - 2} more" if len(left_out) > 2 else ""
        console.print(f"left out: {few}{more}: {reason}", soft_wrap=True)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
