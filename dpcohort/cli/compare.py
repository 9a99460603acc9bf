# SPDX-License-Identifier: Apache-2.0
"""``dpcohort compare``: runs, every combination of a grid, or pairs of rules, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.rule_table import compare_rule_pairs
from dpcohort.cli.source import DataDirOption, DeviceOption, JsonOption, SetOption, data_changes
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dpcohort.runs.evaluation import Comparison, SeedSummary
    from dpcohort.runs.run import Run

__all__ = ["command", "groups_table", "judge"]

_SOME = "For some of them: --selection unbiased,privacy-aware --aggregation mean"


def command(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN RUN... | CONFIG",
            help="Run folders (or folders of seeds), the first is the baseline; or one config: "
            "with a grid table, or with --rules.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The config, as the argument.", show_default=False),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            "--rules",
            metavar="all",
            help="Compare every selection with every aggregation.",
            show_default=False,
        ),
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(
            metavar="RULE,RULE...",
            help="Compare these selections, as in unbiased,threshold(threshold=1); or all.",
            show_default=False,
        ),
    ] = None,
    aggregation: Annotated[
        str | None,
        typer.Option(
            metavar="RULE,RULE...", help="Compare these aggregations; or all.", show_default=False
        ),
    ] = None,
    changes: SetOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of a config's runs.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep a config's runs in this folder.")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", help="Write the table of rules here too.", show_default=False),
    ] = None,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare test accuracy over the same seeds: runs, settings or rules; say what it means."""
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
        every = "all" if rules == "all" else None
        compare_rule_pairs(
            places[0],
            selection=selection or every,
            aggregation=aggregation or every,
            changes=data_changes(changes, data_dir),
            seeds=seeds,
            out=out,
            csv=csv,
            device=device,
            as_json=as_json,
        )
        return
    if csv is not None:
        raise InputError.because("--csv is for rules: add --rules all, or --selection RULE,RULE.")
    if is_config:
        changes = data_changes(changes, data_dir)
        groups = _train_grid(places[0], changes, seeds, out, device, quiet=as_json)
    else:
        groups = _load_groups(places, changes, out)
    summaries, comparisons = judge(groups)
    if as_json:
        print_json(
            {
                "groups": {name: asdict(s) for name, s in summaries.items()},
                "comparisons": [comparison.to_dict() for comparison in comparisons],
            }
        )
        return
    console.print(groups_table(summaries))
    for comparison in comparisons:
        console.print(comparison.sentence, markup=False, soft_wrap=True)


def judge(
    groups: dict[str, Sequence[Run]],
) -> tuple[dict[str, SeedSummary], list[Comparison]]:
    """Each group's results, and each later group against the first."""
    from dpcohort.runs.evaluation import compare_runs, summarise_seeds

    names = list(groups)
    summaries = {name: summarise_seeds(groups[name]) for name in names}
    comparisons = [
        compare_runs(groups[name], groups[names[0]], names=(name, names[0])) for name in names[1:]
    ]
    return summaries, comparisons


def groups_table(summaries: dict[str, SeedSummary]) -> Table:
    """Accuracy of each group with its confidence interval."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("runs", overflow="fold")
    for name in ("test accuracy", "95 % CI", "loss", "worst class", "seeds"):
        table.add_column(name, justify="right")
    for name, summary in summaries.items():
        found, worst = summary.accuracy, summary.worst_class
        interval = f"{100 * found.low:.1f} to {100 * found.high:.1f}" if found.count > 1 else "-"
        at_worst = None if worst is None else summary.class_accuracy[worst]
        table.add_row(
            Text(name),
            f"{100 * found.mean:.1f} %",
            interval,
            "-" if summary.loss is None else f"{summary.loss.mean:.3g}",
            "-" if at_worst is None else f"{worst}: {100 * at_worst.mean:.0f} %",
            str(found.count),
        )
    return table


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
    source: Path,
    changes: list[str] | None,
    seeds: int,
    out: Path | None,
    device: str | None,
    *,
    quiet: bool,
) -> dict[str, Sequence[Run]]:
    from dpcohort.config import load_config
    from dpcohort.runs.training import train_grid

    config = load_config(source)
    config = config.with_overrides(changes) if changes else config

    def show(name: str, done: int, total: int, runs: Sequence[Run]) -> None:
        if not quiet and (done == total or done % max(1, total // 10) == 0):
            tested = [run.test_accuracy for run in runs if run.curve().accuracy.size]
            accuracy = f"  accuracy {100 * sum(tested) / len(tested):.1f} %" if tested else ""
            console.print(f"{name}: round {done}/{total}{accuracy}", markup=False)

    found: Any = train_grid(config, seeds=seeds, out=out, device=device, on_round=show)
    groups: dict[str, Sequence[Run]] = found
    return groups
