# SPDX-License-Identifier: Apache-2.0
"""Writes results/summary.json, docs/research/results.md and its log from the result files.

``python benchmarks/results_page.py`` reads ``results/*.json``, which ``dpcohort reproduce`` and
``dpcohort search`` wrote, and fills the places ``{{...}}`` of ``results/page.md`` (what a person
reads) and ``results/log.md`` (every cell, finding and search). ``--check`` only
says whether the files are what it would write.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PICTURES = ROOT / "docs" / "research" / "results"
#: Pages by their templates.
PAGES = {
    RESULTS / "page.md": ROOT / "docs" / "research" / "results.md",
    RESULTS / "log.md": PICTURES / "log.md",
}
SUMMARY = RESULTS / "summary.json"

#: Data set in the summary to its recipes: paper noise, same network, open.
SETS = {
    "mnist": ("mnist", "beyond-mnist", "beyond-mnist-open"),
    "fashion_mnist": ("fashion-mnist", "beyond-fashion-mnist", "beyond-fashion-mnist-open"),
    "cifar10": ("cifar10", "beyond-cifar10", "beyond-cifar10-open"),
}
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
AWARE, UNBIASED = "privacy-aware", "unbiased"
#: Keys of the summary to cells of the recipe distributed-*-open: mechanism and cohort.
DISTRIBUTED = {
    "distributed_10": ("distributed", 10),
    "distributed_all": ("distributed", 100),
    "distributed_all_half_colluding": ("distributed, half colluding", 100),
    "no_privacy": ("no privacy", 100),
}


def load(name: str) -> dict[str, Any] | None:
    """The full result of a recipe, or None where it was not run."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def cell(result: dict[str, Any] | None, mechanism: str, **axes: Any) -> dict[str, Any] | None:
    found: dict[str, Any]
    for found in result["cells"] if result else ():
        if mechanism in (found["mechanism"], found["adaptive"]) and found["axes"] == axes:
            return found
    return None


def summary(decimals: int = 2) -> dict[str, dict[str, dict[str, float]]]:
    """Per data set and s, in per cent: only numbers that a result file holds.

    ``paper``: the paper, privacy-aware. ``paper_noise``: ours with the paper's noise.
    ``same_network`` and ``open``: the two leagues, privacy-aware. ``unbiased``: unbiased selection
    with the settings of ``same_network``. ``biased``: the biased baseline, paper noise, raw losses.
    ``distributed_...`` and ``no_privacy``: the open league under secure aggregation.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, (paper_noise, same, open_) in SETS.items():
        results = {n: load(n) for n in (paper_noise, same, open_)}
        distributed = load(open_.replace("beyond", "distributed"))
        for s in (100, 70, 30, 0):
            places = {
                "paper_noise": cell(results[paper_noise], AWARE, s=s),
                "same_network": cell(results[same], AWARE, s=s),
                "open": cell(results[open_], AWARE, s=s),
                "unbiased": cell(results[same], UNBIASED, s=s),
                "biased": cell(results[paper_noise], "biased-raw", s=s),
                **{key: cell(distributed, m, cohort=k, s=s) for key, (m, k) in DISTRIBUTED.items()},
            }
            row = {key: round(c["mean"], decimals) for key, c in places.items() if c is not None}
            paper = places["paper_noise"] or places["same_network"]
            if paper is not None and paper["paper"] is not None:
                row = {"paper": paper["paper"], **row}
            if row:
                found.setdefault(name, {})[str(s)] = row
    return found


def ours(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    spread = "" if found["half_width"] is None else f" ± {found['half_width']:.1f}"
    return f"{found['mean']:.1f}{spread}"


def plain(value: Any) -> str:
    return "-" if value is None else f"{value:g}"


def place(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in found["axes"].items())


def table(name: str) -> str:
    """Every cell: paper, ours, difference, verdict."""
    result = load(name)
    if result is None:
        return f"*{name} was not run.*"
    lines = [
        "| mechanism | | paper | ours (mean ± 95 % CI) | difference | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for c in result["cells"]:
        gap = "-" if c["difference"] is None else f"{c['difference']:+.1f}"
        row = [c["mechanism"], place(c), plain(c["paper"]), ours(c), gap, c["verdict"] or "-"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def grid(name: str) -> str:
    """Mechanisms down, the values of the first axis across."""
    result = load(name)
    if result is None:
        return f"*{name} was not run.*"
    axis = next(iter(result["cells"][0]["axes"]))
    values = list(dict.fromkeys(c["axes"][axis] for c in result["cells"]))
    head = " | ".join(f"{axis} = {v}" for v in values)
    lines = [f"| | {head} |", "|---" * (len(values) + 1) + "|"]
    for mechanism in dict.fromkeys(c["mechanism"] for c in result["cells"]):
        row = [ours(cell(result, mechanism, **{axis: v})) for v in values]
        lines.append(f"| {mechanism} | {' | '.join(row)} |")
    return "\n".join(lines)


def distributed(name: str) -> str:
    """Mechanisms and cohorts down, the values of s across."""
    result = load(name)
    if result is None:
        return f"*{name} was not run.*"
    values = list(dict.fromkeys(c["axes"]["s"] for c in result["cells"]))
    lines = [f"| | {' | '.join(f's = {v}' for v in values)} |", "|---" * (len(values) + 1) + "|"]
    rows: dict[str, dict[Any, str]] = {}
    for c in result["cells"]:
        cohort = f", cohort of {c['axes']['cohort']}" if "cohort" in c["axes"] else ""
        rows.setdefault(c["mechanism"] + cohort, {})[c["axes"]["s"]] = ours(c)
    lines += [
        f"| {row} | {' | '.join(found.get(v, '-') for v in values)} |"
        for row, found in rows.items()
    ]
    return "\n".join(lines)


def findings(name: str) -> str:
    result = load(name)
    words = {True: "yes", False: "**no**", None: "-"}
    rows = result["findings"] if result else []
    return "\n".join(f"- {words[f['holds']]}: {f['text']} ({f['detail']})" for f in rows)


def run_line(name: str) -> str:
    result = load(name)
    if result is None:
        return ""
    if not result["cells"]:
        return f"`{result['command'].rpartition(' --seeds')[0]}`"
    device = " and ".join(dict.fromkeys(c["device"] for c in result["cells"]))
    held = "every receipt certifies" if result["promises_hold"] else "NOT EVERY RECEIPT CERTIFIES"
    if any(cell["adaptive"] == "biased-raw" for cell in result["cells"]):
        held += ", raw losses not counted"
    trained = len(result["cells"]) * result["seeds"]
    return (
        f"`{result['command']}`: {trained} trainings, {result['seconds']:g} s on {device}; {held}."
    )


def baseline(name: str) -> str:
    """What the baselines' own search chose."""
    return search(name, baseline=True)


def search(name: str, *, baseline: bool = False) -> str:
    path = RESULTS / f"search-{name}{'-baseline' if baseline else ''}.json"
    if not path.exists():
        return f"*`dpcohort search {name}{' --baseline' if baseline else ''}` was not run.*"
    found = json.loads(path.read_text())
    command = found["command"]
    best = sorted(found["tried"], key=lambda t: -t["mean"])[:3]
    chosen = next(t for t in found["tried"] if t["set"] == found["chosen"])
    lines = [
        f"`{command}`: {len(found['tried'])} settings, {found['seeds']} "
        f"seed{'s' if found['seeds'] > 1 else ''}, "
        f"{found['held_out']:g} of the training records held out. Chosen "
        f"({chosen['mean']:.1f} % held out): `{' '.join(chosen['set'])}`. The next best had "
        + " and ".join(f"{t['mean']:.1f}" for t in best[1:])
        + " %."
    ]
    return "\n".join(lines)


def panels(name: str) -> str:
    result = load(name)
    lines = [
        "| panel | distance to unbiased | rank correlation with ε | with size |",
        "|---|---|---|---|",
    ]
    for row in result["panels"] if result else ():
        lines.append(
            f"| {row['panel']} | {row['distance_to_unbiased']:.2f} | "
            f"{row['rank_correlation_epsilon']:.2f} | {row['rank_correlation_size']:.2f} |"
        )
    return "\n".join(lines)


def headline(_: str = "") -> str:
    lines = [
        "| | s | the paper | ours, paper noise | same network | open | unbiased, same network "
        "| open, distributed, 10 | open, distributed, all | … half colluding | … no privacy |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = ("paper", "paper_noise", "same_network", "open", "unbiased", *DISTRIBUTED)
    for name, rows in summary(decimals=3).items():
        for s, row in rows.items():
            shown = [f"{row[key]:.1f}" if key in row else "-" for key in keys]
            lines.append(f"| {TITLES[name]} | {s} | {' | '.join(shown)} |")
    return "\n".join(lines)


def figure(name: str) -> str:
    result = load(name)
    if result is None or not (PICTURES / f"{name}.png").exists():
        return ""
    return f"![{result['title']}]({name}.png)"


def value(words: str) -> str:
    """``NAME FIELD MECHANISM @ AXIS=VALUE``: one number of one cell."""
    left, _, right = words.partition("@")
    name, field, mechanism = left.strip().split(" ", 2)
    key, _, given = right.strip().partition("=")
    result = load(name)
    for found in result["cells"] if result else ():
        if found["mechanism"] == mechanism.strip() and str(found["axes"].get(key)) == given:
            return f"{found[field]:.1f}"
    return "-"


def cohort(words: str) -> str:
    """``NAME MECHANISM @ SIZE``: accuracy at s = 30 with cohorts of this size."""
    left, _, size = words.partition("@")
    name, mechanism = left.strip().split(" ", 1)
    result = load(name)
    for found in result["cells"] if result else ():
        axes = found["axes"]
        there = axes.get("s") == 30 and axes.get("cohort", 100) == int(size)
        if there and found["mechanism"] == mechanism.strip():
            return f"{found['mean']:.1f}"
    return "-"


def total_seconds(_: str = "") -> str:
    """Seconds of training in all full results, by device."""
    found: dict[str, float] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        if result.get("format") == "dpcohort reproduction" and result["cells"]:
            for c in result["cells"]:
                found[c["device"]] = found.get(c["device"], 0.0) + c["seconds"]
    return " and ".join(f"{seconds:.0f} s on {device}" for device, seconds in found.items())


WORDS: dict[str, Callable[[str], str]] = {
    "table": table,
    "grid": grid,
    "findings": findings,
    "distributed": distributed,
    "run": run_line,
    "search": search,
    "baseline": baseline,
    "panels": panels,
    "headline": headline,
    "figure": figure,
    "value": value,
    "cohort": cohort,
    "seconds": total_seconds,
}


def page(template: Path) -> str:
    """A template with every place filled."""

    def fill(found: re.Match[str]) -> str:
        word, _, rest = found[1].strip().partition(" ")
        return WORDS[word](rest.strip())

    return re.sub(r"\{\{(.+?)\}\}", fill, template.read_text())


def summary_text() -> str:
    return json.dumps(summary(), indent=1) + "\n"


def draw() -> None:
    """Every picture the log asks for, from the result files."""
    from dpcohort.report import save_selection_figure
    from dpcohort_lab.recipes import load_recipe
    from dpcohort_lab.recipes.figures import result_figure
    from dpcohort_lab.recipes.judgement import selection_panels

    PICTURES.mkdir(exist_ok=True)
    for name in re.findall(r"\{\{figure (.+?)\}\}", (RESULTS / "log.md").read_text()):
        result, path = load(name), PICTURES / f"{name}.png"
        if result is None:
            continue
        recipe = load_recipe(name)
        if recipe.header.figure == "selection":
            save_selection_figure(*selection_panels(recipe), path)
            continue
        kind, across = recipe.header.figure, recipe.header.across
        result_figure(result, kind=kind, across=across).savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--draw", action="store_true", help="also draw the pictures")
    given = parser.parse_args()
    if given.draw:
        draw()
    wanted = {SUMMARY: summary_text(), **{out: page(source) for source, out in PAGES.items()}}
    if given.check:
        stale = [str(p.relative_to(ROOT)) for p, t in wanted.items() if p.read_text() != t]
        sys.exit(f"not up to date: {', '.join(stale)}" if stale else 0)
    for path, text in wanted.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
