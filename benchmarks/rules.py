# SPDX-License-Identifier: Apache-2.0
"""Selection and aggregation rules side by side, with the paper's noise and with the tight one.

``python benchmarks/rules.py`` takes the configuration of the recipe ``fashion-mnist`` (or
``--data cifar10``) at s = 30, trains a fixed set of pairs of rules with three seeds each and writes
``results/rules/DATA-NOISE.json``. ``--table`` trains nothing and prints the files as the tables of
docs/rules.md; "heard" is draws over records of the strictest and of the loosest tenth.

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
from dpcohort.runs.config_text import toml_text
from dpcohort.runs.configured_plan import configured_data
from dpcohort.runs.rule_comparison import RuleRow, compare_rules
from dpcohort.runs.rule_pairs import RulePair, SkippedPair, chosen_rules, rule_pairs

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "dpcohort" / "recipes"
RESULTS = ROOT / "results" / "rules"
NOISES = {
    "paper": ["privacy.accountant=paper", "privacy.guard=lift", "selection.noise_model=paper"],
    "tight": ["privacy.accountant=tight", "privacy.guard=", "selection.noise_model=exact"],
}
#: Every selection with the mean; then the aggregations with the two selections that matter most.
SETS = (
    (
        "unbiased,uniform,privacy-aware,inverse-noise,epsilon-proportional,best-threshold,"
        "minimum-epsilon,participation-counts,payment-cap",
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
) -> tuple[list[RulePair], list[SkippedPair]]:
    data = configured_data(config)
    pairs: list[RulePair] = []
    skipped: list[SkippedPair] = []
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

    table = compare_rules(pairs, skipped, on_row=show)
    return {
        "benchmark": "rules",
        "dpcohort": dpcohort.__version__,
        "config": toml_text(config.values),
        "seeds": seeds,
        "device": pairs[0].jobs[0].device,
        **table.to_dict(),
    }


def markdown(found: dict[str, Any]) -> str:
    """A result file as a table, best first."""
    columns = ["selection", "aggregation", "accuracy", "noise/C", "ε used", "bias", "heard"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    rows = [row for row in found["rows"] if row["accuracy"] is not None]
    for row in sorted(rows, key=lambda row: -row["accuracy"]["mean"]):
        accuracy = row["accuracy"]
        half = (accuracy["high"] - accuracy["low"]) / 2
        lines.append(
            f"| `{row['selection']}` | `{row['aggregation']}` | {100 * accuracy['mean']:.1f} ± "
            f"{100 * half:.1f} | {row['noise']:.3g} | {100 * row['certified']:.1f} % | "
            f"{row['bias']:.2f} | {row['heard'][0]:.2f}, {row['heard'][-1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=["fashion-mnist", "cifar10"], default="fashion-mnist")
    parser.add_argument("--noise", choices=[*NOISES, "both"], default="both")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the files, train nothing")
    options = parser.parse_args()
    for noise in NOISES if options.noise == "both" else [options.noise]:
        path = options.out / f"{options.data}-{noise}.json"
        if options.table:
            print(f"\n{path.name}\n\n{markdown(json.loads(path.read_text()))}")
            continue
        config = base_config(options.data, noise, options.set)
        found = measured(config, seeds=options.seeds, device=options.device)
        options.out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(found, indent=1) + "\n")
        print(f"{path}\n\n{markdown(found)}")


if __name__ == "__main__":
    main()
