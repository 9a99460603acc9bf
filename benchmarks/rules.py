# SPDX-License-Identifier: Apache-2.0
"""Selection and aggregation rules side by side, with the paper's noise and with the tight one.

``python benchmarks/rules.py`` takes the configuration of the recipe ``fashion-mnist`` (or
``--data cifar10``) at s = 30, trains a fixed set of pairs of rules with three seeds each and writes
``results/rules/DATA-NOISE.json``; with ``--adaptive`` the rules that choose round by round, and
``results/rules/DATA-NOISE-adaptive.json``. ``--page`` trains nothing and writes the files as tables
into docs/research/what-wins/log.md; "heard" is draws over records of the strictest and loosest
tenth, with tight noise.

Step size and eta are those of the recipe for every rule: they were searched for privacy-aware
selection with the mean, so other rules may do better with settings of their own.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dpcohort
from dpcohort.atomic_file import write_text
from dpcohort.config import Config, loads_config
from dpcohort.runs import configured_data
from dpcohort.text_files import toml_text
from dpcohort_lab.rule_comparison import (
    Pair,
    RuleRow,
    Skipped,
    chosen_rules,
    compare_rules,
    plain_table,
    rule_pairs,
)

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "lab" / "dpcohort_lab" / "recipes"
RESULTS = ROOT / "results" / "rules"
NOISES = {
    "paper": ["privacy.accountant=paper", "privacy.guard=lift", "selection.noise_model=paper"],
    "tight": ["privacy.accountant=tight", "privacy.guard=", "selection.noise_model=exact"],
}
ADAPTIVE = (("power-of-choice,cpow-d,rpow-d,ucb-cs,oort,clustered", "mean"),)
PAGE = ROOT / "docs" / "research" / "what-wins" / "log.md"
BEGIN, END = "<!-- tables: python benchmarks/rules.py --page -->", "<!-- end of tables -->"
TITLES = {"fashion-mnist": "Fashion-MNIST, s = 30", "cifar10": "CIFAR-10, s = 30"}
#: Every selection with the mean; then the aggregations with the two selections that matter most.
SETS = (
    (
        "unbiased,uniform,privacy-aware,inverse-noise,epsilon-proportional,best-threshold,"
        "minimum-epsilon",
        "mean",
    ),
    (
        "unbiased,privacy-aware",
        "size-weighted,importance-compensated,epsilon-weighted,inverse-variance,estimated-noise,"
        "minimum-noise,projected,projected-plus,trimmed-mean,geometric-median",
    ),
)


def base_config(data: str, noise: str, changes: Sequence[str] = ()) -> Config:
    """The recipe's configuration at s = 30, with one kind of noise."""
    values = tomllib.loads((RECIPES / f"{data}.toml").read_text())
    values.pop("recipe")
    config = loads_config(toml_text(values))
    return config.with_overrides(["data.similarity=30.0", *NOISES[noise], *changes])


def all_pairs(
    config: Config, *, seeds: int, device: str | None, sets: Sequence[tuple[str, str]] = SETS
) -> tuple[list[Pair], list[Skipped]]:
    data = configured_data(config)
    pairs: list[Pair] = []
    skipped: list[Skipped] = []
    for selection, aggregation in sets:
        found, left_out = rule_pairs(
            config,
            selections=chosen_rules("selection", selection),
            aggregations=chosen_rules("aggregation", aggregation),
            seeds=seeds,
            device=device,
            data=data,
        )
        pairs += found
        skipped += left_out
    return pairs, skipped


def measured(
    config: Config, *, seeds: int, device: str | None, sets: Sequence[tuple[str, str]] = SETS
) -> dict[str, Any]:
    """What a result file holds."""
    pairs, skipped = all_pairs(config, seeds=seeds, device=device, sets=sets)

    def show(done: int, total: int, row: RuleRow) -> None:
        found = row.failed if row.accuracy is None else f"{100 * row.accuracy.mean:.1f} %"
        print(f"{done}/{total} {row.selection}, {row.aggregation}: {found}", flush=True)

    rows = compare_rules(pairs, on_row=show)
    return {
        "benchmark": "rules",
        "dpcohort": dpcohort.__version__,
        "config": toml_text(config.values),
        "seeds": seeds,
        "device": pairs[0][2][0].device,
        **plain_table(rows, skipped),
    }


def load(data: str, noise: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The rows of a data set and noise, adaptive rules included where they were trained."""
    paths = [folder / f"{data}-{noise}.json", folder / f"{data}-{noise}-adaptive.json"]
    files = [json.loads(path.read_text()) for path in paths if path.exists()]
    return [row for found in files for row in found["rows"] if row["accuracy"] is not None]


def accuracy(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    found = row["accuracy"]
    return f"{100 * found['mean']:.1f} ± {50 * (found['high'] - found['low']):.1f}"


def markdown(paper: Sequence[dict[str, Any]], tight: Sequence[dict[str, Any]]) -> str:
    """Both noises side by side, best with the paper's noise first."""
    columns = [
        "selection", "aggregation", "paper noise", "noise/C", "tight noise", "noise/C", "bias",
        "heard",
    ]  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    other = {(row["selection"], row["aggregation"]): row for row in tight}
    for row in sorted(paper, key=lambda row: -row["accuracy"]["mean"]):
        beside = other.get((row["selection"], row["aggregation"]))
        shown = beside or row
        bias = "-" if shown["bias"] is None else f"{shown['bias']:.2f}"
        lines.append(
            f"| `{row['selection']}` | `{row['aggregation']}` | {accuracy(row)} | "
            f"{row['noise']:.2g} | {accuracy(beside)} | "
            f"{'-' if beside is None else format(beside['noise'], '.2g')} | {bias} | "
            f"{shown['heard'][0]:.2f}, {shown['heard'][-1]:.2f} |"
        )
    return "\n".join(lines)


def tables(folder: Path = RESULTS) -> str:
    """All tables of the page."""
    parts = []
    for data, title in TITLES.items():
        table = markdown(load(data, "paper", folder), load(data, "tight", folder))
        parts.append(f"## {title}\n\n{table}")
    return "\n\n".join(parts)


def page(text: str, folder: Path = RESULTS) -> str:
    """The page with the tables of the files in their place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(folder)}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=list(TITLES), default="fashion-mnist")
    parser.add_argument("--noise", choices=[*NOISES, "both"], default="both")
    parser.add_argument("--adaptive", action="store_true", help="rules that choose round by round")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write the page, train nothing")
    options = parser.parse_args()
    if options.page:
        write_text(PAGE, page(PAGE.read_text()))
        return
    ending = "-adaptive" if options.adaptive else ""
    for noise in NOISES if options.noise == "both" else [options.noise]:
        path = options.out / f"{options.data}-{noise}{ending}.json"
        found = measured(
            base_config(options.data, noise, options.set),
            seeds=options.seeds,
            device=options.device,
            sets=ADAPTIVE if options.adaptive else SETS,
        )
        options.out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(found, indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main()
